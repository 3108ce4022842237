"""The server's time: every time of a queue is told by it, as other clocks may be wrong by days."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ServerClock:
    """Tells unix seconds by the server's clock, between two looks at it by a steady one.

    Until :meth:`learn` is called it is this machine's clock. Any thread may use it.
    """

    _offset: float = field(
        default_factory=lambda: time.time() - time.monotonic(), init=False, compare=False
    )

    def now(self) -> float:
        """Unix seconds on the server."""
        return time.monotonic() + self._offset

    def learn(self, now: float) -> None:
        """What the server's clock says just now, in unix seconds."""
        self._offset = now - time.monotonic()


def seconds_of(reply: Any) -> float:
    """Unix seconds of the server's reply to ``TIME``."""
    seconds, micros = reply
    return int(seconds) + int(micros) / 1e6

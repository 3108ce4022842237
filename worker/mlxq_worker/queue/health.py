"""The row by which others see that this worker lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mlxq_schemas import Keys
from mlxq_schemas.clock import ServerClock
from mlxq_worker.queue.link import Command, Link, run_script

PERIOD: Final = 3.0
"""Seconds between heartbeats."""
TTL: Final = 15
"""Seconds after which a silent worker's row is gone."""

Fields = Mapping[str, str | int | float]


class Health:
    """The step of the health duty. ``fields`` gives what the row says besides its heartbeat;
    ``clock`` learns the server's time at each step.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        worker: str,
        fields: Callable[[], Fields],
        clock: ServerClock,
    ) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._fields = fields
        self._clock = clock

    def step(self) -> float:
        """Write the row; the seconds until the next time."""
        pairs = (part for pair in self._fields().items() for part in pair)
        names = [self._keys.worker(self._worker), self._keys.workers]
        now = self._link.one(*run_script("health", names, [self._worker, TTL, *pairs]))
        self._clock.learn(float(now))
        return PERIOD

    def remove(self) -> None:
        """Take the row away: this worker ends."""
        self._send(
            ("ZREM", self._keys.workers, self._worker),
            ("DEL", self._keys.worker(self._worker)),
        )

    def _send(self, *commands: Command) -> None:
        for reply in self._link.call(*commands):
            if isinstance(reply, Exception):
                raise reply

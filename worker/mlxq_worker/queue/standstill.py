"""Times in which this process did not run: the machine slept, or the process was stopped.

Leases run on meanwhile, on the server. Who wakes is no dead worker, and must say so before others
judge by the time that it did not see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

LEFT: Final = 0.5
"""Of a time in which the process was stopped it computed less than this share, on one core: one
that is busy in a call which lets no other thread run was not stopped."""


class Moment(NamedTuple):
    """All clocks at once, in seconds. ``steady`` stands still while a machine sleeps, ``wall``
    does not; ``computed`` is the processor time of this process.
    """

    wall: float
    steady: float
    computed: float


def _now() -> Moment:
    return Moment(time.time(), time.monotonic(), time.process_time())


class Standstill:
    """Tells a standstill of more than ``least`` seconds, if :meth:`look` is called far more often.

    A step of the wall clock looks like a sleep. Any thread may call the methods.
    """

    def __init__(self, least: float, now: Callable[[], Moment] = _now) -> None:
        self._least = least
        self._now = now
        self._lock = threading.Lock()
        self._last = now()
        self._woke = float("-inf")
        self._untold = 0.0

    def look(self) -> float:
        """Seconds of a standstill that nobody was told of yet; 0: there was none."""
        with self._lock:
            now, last = self._now(), self._last
            self._last = now
            steady = now.steady - last.steady
            slept = now.wall - last.wall - steady
            stopped = steady if now.computed - last.computed < LEFT * steady else 0.0
            if (length := max(slept, stopped)) > self._least:
                self._untold += length
                self._woke = now.steady
            return self._untold

    def told(self, seconds: float) -> None:
        """The queue knows of so many seconds that :meth:`look` gave."""
        with self._lock:
            self._untold = max(0.0, self._untold - seconds)

    def woke_within(self, seconds: float) -> bool:
        """Whether a standstill ended so many seconds ago, or later."""
        self.look()
        with self._lock:
            return self._last.steady - self._woke <= seconds

"""A background thread that repeats one step, and does not run hot while the server is away."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from mlxq_schemas.errors import QueueError
from mlxq_worker.queue.connection import reason

log = logging.getLogger(__name__)

THREAD_PREFIX: Final = "mlxq-"
FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 5.0
"""Seconds."""


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row (from 1): doubled, with jitter."""
    longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, guards nothing


class Duty:
    """Repeats ``step`` until stopped.

    ``step`` returns the seconds to wait before it is called again; :meth:`wake` cuts that short.
    After an error the wait grows, up to ``longest`` seconds, and cannot be cut short but by
    :meth:`stop`.
    """

    def __init__(
        self, name: str, step: Callable[[], float], longest: float = LONGEST_DELAY
    ) -> None:
        self.name = name
        self._step = step
        self._longest = longest
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(
            target=self._run, name=f"{THREAD_PREFIX}{name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Call the step now rather than after its pause."""
        if not self._wake.is_set():  # setting takes a lock, and some wake for every token
            self._wake.set()

    def stop(self) -> None:
        """Ask for the end; the step in progress is finished."""
        self._stop.set()
        self._wake.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread's end; True if it ended or never ran."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause = self._attempt()
            if pause is None:
                self._stop.wait(min(self._longest, backoff(self._failures)))
            elif pause > 0:
                self._wake.wait(pause)

    def _attempt(self) -> float | None:
        """One step; its pause, or None if it failed."""
        try:
            pause = self._step()
        except (RedisError, QueueError, OSError) as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("queue trouble", extra={"duty": self.name, "reason": reason(error)})
            return None
        except Exception:
            # A duty that dies in silence would leave the worker deaf.
            self._failures += 1
            log.exception("unexpected error", extra={"duty": self.name})
            return None
        if self._failures:
            log.warning("queue is back", extra={"duty": self.name, "failures": self._failures})
        self._failures = 0
        return pause

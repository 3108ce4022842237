"""Which ticks are due, and doing each of them once however many schedulers there are.

Two keys of the queue: the last tick that was done, and a lock over the doing.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import redis

from mlxq_producer.connection import address, unavailable
from mlxq_producer.cron.schedule import Schedule
from mlxq_schemas import Keys
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.keys import check_name
from mlxq_schemas.scripts import script

LOCK: Final = 60.0
"""Seconds after which the lock of a scheduler that died is free."""

KEPT: Final = 400 * 86400
"""Seconds for which the last tick is remembered: longer than a yearly schedule's pause."""

MOST: Final = 1000
"""Missed ticks that ``all`` makes up for at most: the newest of them."""


class CatchUp(StrEnum):
    """What becomes of ticks that nobody did: none, the last or all of them is made up for."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


def tick_name(tick: float) -> str:
    """A tick as a part of ids: local time, as in ``20301231T0300``."""
    return f"{datetime.fromtimestamp(tick):%Y%m%dT%H%M}"  # noqa: DTZ006 - cron speaks local time


def due(
    schedule: Schedule, last: float | None, now: float, policy: CatchUp, late: float
) -> list[float]:
    """The ticks to do now, the oldest first, where ``last`` is the last that was done.

    A tick is on time for ``late`` seconds, and missed after that. Before the first one (``last``
    None) nothing was missed.
    """
    after = now - late if last is None else last
    if policy is CatchUp.SKIP:
        after = max(after, now - late)
    return list(deque(schedule.between(after, now), MOST if policy is CatchUp.ALL else 1))


@dataclass(frozen=True)
class Ticker:
    """The ticks of one schedule, by name, of a queue."""

    client: redis.Redis
    keys: Keys
    name: str

    def __post_init__(self) -> None:
        check_name("schedule", self.name)

    def run(
        self,
        schedule: Schedule,
        do: Callable[[float], int],
        policy: CatchUp = CatchUp.LAST,
        late: float = 300.0,
        now: float | None = None,
    ) -> int | None:
        """Do what is due; returns what the last ``do(tick)`` returned, None if nothing was.

        A tick is done when ``do`` returns 0. After anything else it and all later ones stay due.
        While another scheduler is at it, nothing is due. Raises ``QueueUnavailable``.
        """
        if late <= 0:
            raise ConfigError(f"late is {late} s: give the seconds for which a tick is on time")
        try:
            with self._locked() as ours:
                if not ours:
                    return None
                last: Any = self.client.get(self.keys.cron(self.name))
                known = None if last is None else float(last)
                status = None
                moment = seconds_of(self.client.time()) if now is None else now
                for tick in due(schedule, known, moment, policy, late):
                    status = do(tick)
                    if status:
                        return status
                    self.client.set(self.keys.cron(self.name), tick, ex=KEPT)
                return status
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise unavailable(error, address(self.client)) from error

    @contextmanager
    def _locked(self) -> Generator[bool]:
        """Hold the lock, renewed meanwhile; False if another holds it."""
        key, token = self.keys.cron_lock(self.name), uuid.uuid4().hex
        if not self.client.set(key, token, nx=True, px=int(LOCK * 1000)):
            yield False
            return
        over = threading.Event()
        thread = threading.Thread(target=self._renew, args=(key, token, over), daemon=True)
        thread.start()
        try:
            yield True
        finally:
            over.set()
            thread.join()
            self.client.register_script(script("unlock"))([key], [token])

    def _renew(self, key: str, token: str, over: threading.Event) -> None:
        while not over.wait(LOCK / 4):
            with suppress(redis.RedisError):
                # Were it another's by now, that one's would only last longer.
                if self.client.get(key) == token.encode():
                    self.client.expire(key, int(LOCK))

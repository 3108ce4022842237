"""The row by which others see that this worker lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from mlxq_schemas import Keys
from mlxq_worker.queue.link import Command, Link

PERIOD: Final = 3.0
"""Seconds between heartbeats."""
TTL: Final = 15
"""Seconds after which a silent worker's row is gone."""

Fields = Mapping[str, str | int | float]


class Health:
    """The step of the health duty. ``fields`` gives what the row says besides its heartbeat."""

    def __init__(self, link: Link, keys: Keys, worker: str, fields: Callable[[], Fields]) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._fields = fields

    def step(self) -> float:
        """Write the row; the seconds until the next time."""
        now = time.time()
        row = {**self._fields(), "heartbeat": now}
        pairs = (part for pair in row.items() for part in pair)
        key = self._keys.worker(self._worker)
        self._send(
            ("HSET", key, *pairs),
            ("EXPIRE", key, TTL),
            ("ZADD", self._keys.workers, now + TTL, self._worker),
            ("ZREMRANGEBYSCORE", self._keys.workers, "-inf", now - TTL),
        )
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

"""Taking the names of workers that ended out of the consumer groups: they would pile up."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.connection import reason, text
from mlxq_worker.queue.intake import group_is_gone
from mlxq_worker.queue.link import Link, run_script

log = logging.getLogger(__name__)

PERIOD: Final = 600.0
"""Seconds between looks for names that are long gone."""
LONG: Final = 3600.0
"""Seconds of silence, at least, after which a worker is long gone."""
LEASES: Final = 4
"""The same in leases."""
PAGE: Final = 500
"""Names taken out in one go."""


class Janitor:
    """The step of the janitor duty; ``lease`` is in seconds."""

    def __init__(self, link: Link, keys: Keys, worker: str, lease: float) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._silence_ms = 1000 * max(LONG, LEASES * lease)
        self._told = False

    def step(self) -> float:
        """Take out the names of workers that are long gone; the seconds until the next look."""
        for stream in self._keys.all_jobs():
            names = self._gone(stream)
            for start in range(0, len(names), PAGE):
                self._dismiss(stream, names[start : start + PAGE])
        self._link.close()
        return PERIOD

    def leave(self) -> None:
        """This worker ends: take its name out, where nothing is pending under it."""
        for stream in self._keys.all_jobs():
            self._dismiss(stream, [self._worker])
        self._link.close()

    def _gone(self, stream: str) -> list[str]:
        live, consumers = self._link.call(
            ("ZRANGEBYSCORE", self._keys.workers, "-inf", "+inf"),
            ("XINFO CONSUMERS", stream, GROUP),
        )
        if self._refused(live) or self._refused(consumers):
            return []
        known = {text(name) for name in live}
        rows = (dict(zip(row[::2], row[1::2], strict=False)) for row in consumers)
        return [name for row in rows if (name := self._left(row)) and name not in known]

    def _left(self, row: Mapping[bytes, Any]) -> str | None:
        """The name in a row of the group's list, if it is idle and silent for long."""
        away = row[b"pending"] == 0 and row[b"idle"] > self._silence_ms
        return text(row[b"name"]) if away else None

    def _dismiss(self, stream: str, names: Sequence[str]) -> None:
        command = run_script("dismiss", [stream], [GROUP, *names])
        self._refused(self._link.call(command)[0])

    def _refused(self, reply: Any) -> bool:
        """True if the server said no, which is told once: names that stay do no harm."""
        if not isinstance(reply, ResponseError):
            return False
        if not (self._told or group_is_gone(reply) or "no such key" in str(reply)):
            self._told = True
            log.warning(
                "names of ended workers stay in the consumer groups",
                extra={"reason": reason(reply)},
            )
        return True

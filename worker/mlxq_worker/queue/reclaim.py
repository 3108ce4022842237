"""Taking over jobs of workers that died: entries whose lease has run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.entry import Entry, parse_entries
from mlxq_worker.queue.intake import group_is_gone
from mlxq_worker.queue.link import Link

START: Final = "0-0"
MAX_CALLS: Final = 1000
"""Calls of one sweep and stream: the server looks at about ten entries for each one asked for."""


class Reclaimer:
    """The step of the reclaim duty.

    ``room`` says how many jobs may be taken now; ``take`` gets the entries. ``lease`` and
    ``period`` are in seconds.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        worker: str,
        *,
        lease: float,
        period: float,
        room: Callable[[], int],
        take: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._link = link
        self._worker = worker
        self._lease_ms = max(1, int(lease * 1000))
        self._period = period
        self._room = room
        self._take = take
        self._cursors = dict.fromkeys(keys.all_jobs(), START)

    def step(self) -> float:
        """One sweep over all streams; the seconds until the next."""
        for stream in self._cursors:
            try:
                self._sweep(stream)
            except ResponseError as error:
                self._cursors[stream] = START
                if not group_is_gone(error):  # intake creates it again
                    raise
        return self._period

    def _sweep(self, stream: str) -> None:
        """Follow the cursor to its end, or until there is no room; then go on there next time."""
        for _ in range(MAX_CALLS):
            room = self._room()
            if room <= 0:
                return
            reply: Any = self._link.one(
                *("XAUTOCLAIM", stream, GROUP, self._worker, self._lease_ms),
                *(self._cursors[stream], "COUNT", room),
            )
            self._cursors[stream] = text(reply[0])
            entries = parse_entries(stream, reply[1], taken_over=True)
            if entries:
                self._take(entries)
            if self._cursors[stream] == START:
                return

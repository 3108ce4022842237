"""Taking over jobs of workers that died: entries whose lease has run out.

One worker of a queue looks for them at a time: all that have room would find the same ones.
While the server was away nobody could renew, so afterwards all leases may seem to have run out. A
lease therefore counts only time in which some worker reached the server, which the queue's beats
tell to all alike, however often a connection of one breaks. What was handed back is taken at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.entry import Entry, parse_entries
from mlxq_worker.queue.hand_back import IDLE_MS
from mlxq_worker.queue.intake import group_is_gone
from mlxq_worker.queue.link import Link, run_script
from mlxq_worker.queue.standstill import Standstill

log = logging.getLogger(__name__)

START: Final = "0-0"
MAX_CALLS: Final = 1000
"""Calls of one sweep and stream: the server looks at about ten entries for each one asked for."""
LOCK_MS: Final = 5000
"""Milliseconds after which a sweeper that died no longer keeps others from it."""
SHORT_PAUSE: Final = 0.1
"""Seconds until another's sweep, or our renewal of leases after a standstill, may be over."""


class Reclaimer:
    """The step of the reclaim duty.

    ``room`` says how many jobs may be taken now; ``take`` gets the entries. ``lease`` and
    ``period`` are in seconds. After a ``standstill`` leases are renewed before any is taken over.
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
        standstill: Standstill,
    ) -> None:
        self._link = link
        self._lock = keys.sweeper
        self._beats = keys.beats
        self._worker = worker
        self._lease = lease
        self._period = period
        self._room = room
        self._take = take
        self._standstill = standstill
        self._cursors = dict.fromkeys(keys.all_jobs(), START)

    def step(self) -> float:
        """One sweep over all streams; the seconds until the next."""
        if self._room() <= 0:
            return self._period
        if self._standstill.look() or not self._lock_sweep():
            return min(SHORT_PAUSE, self._period)
        try:
            for stream in self._cursors:
                self._sweep(stream)
        finally:
            self._link.one(*run_script("unlock", [self._lock], [self._worker]))
        return self._period

    def _lock_sweep(self) -> object:
        return self._link.one("SET", self._lock, self._worker, "NX", "PX", LOCK_MS)

    def _sweep(self, stream: str) -> None:
        """Go round all entries once, or until there is no room; then go on there next time."""
        turned = self._cursors[stream] == START
        for _ in range(MAX_CALLS):
            room = self._room()
            if room <= 0:
                return
            entries = self._claim(stream, room)
            if entries:
                log.info("taking jobs over", extra={"jobs": len(entries), "stream": stream})
                self._take(entries)
            if self._cursors[stream] == START:
                if turned:
                    return
                turned = True

    def _claim(self, stream: str, count: int) -> list[Entry]:
        where = [GROUP, self._worker, self._cursors[stream], count, IDLE_MS]
        sweep = run_script("sweep", [stream, self._beats], [self._lease, *where])
        try:
            reply: Any = self._link.one(*sweep)
        except ResponseError as error:
            self._cursors[stream] = START
            if not group_is_gone(error):  # intake creates it again
                raise
            return []
        self._cursors[stream] = text(reply[0])
        return parse_entries(stream, reply[1], "over")

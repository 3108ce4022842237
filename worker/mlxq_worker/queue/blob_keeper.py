"""Prolonging the lives of media that waiting jobs need, and those that may be sent again.

A job may wait for longer than anybody foresaw: behind a backlog, for its time, or as a dead letter
for somebody to retry it. One worker of a queue goes round all of them, a page at a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from mlxq_schemas import Keys
from mlxq_worker.queue.blobs import TTL
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.link import Link, run_script

ROUND: Final = 300
"""Seconds from the end of one round to the next, and after which a keeper counts as dead."""
PAGE: Final = 200
PAGE_PAUSE: Final = 0.05
"""Seconds between two pages: the server has other things to do."""
SLACK: Final = TTL // 2
"""A blob is prolonged when it has lost so many seconds of its life: a round writes little."""

Page = tuple[list[str], Any]
"""Job ids, and where the next page begins (None: nowhere)."""


class BlobKeeper:
    """The step of the keeper duty."""

    def __init__(self, link: Link, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._sources: list[tuple[Callable[[str, Any], Page], str]] = [
            *((self._entries, stream) for stream in keys.all_jobs()),
            (self._delayed, keys.delayed),
            (self._entries, keys.dead),
        ]
        self._left: list[tuple[Callable[[str, Any], Page], str]] = []
        self._cursor: Any = None

    def step(self) -> float:
        """One page of the round, or the look whether one is due; the seconds until the next."""
        if not self._left:
            if not self._link.one("SET", self._keys.keeper, self._worker, "NX", "EX", ROUND):
                self._link.close()
                return ROUND / 10
            self._left, self._cursor = list(self._sources), None
        read, key = self._left[0]
        try:
            ids, after = read(key, self._cursor)
            self._keep(ids)
        except ResponseError:
            self._go_on(None)  # what is wrong with one source must not keep us from the others
            raise
        self._go_on(after)
        self._link.one("EXPIRE", self._keys.keeper, ROUND)
        return PAGE_PAUSE

    def _go_on(self, after: Any) -> None:
        self._cursor = after
        if after is None:
            self._left.pop(0)

    def _entries(self, stream: str, after: Any) -> Page:
        start = "-" if after is None else f"({after}"
        rows: Any = self._link.one("XRANGE", stream, start, "+", "COUNT", PAGE)
        named = (dict(zip(fields[::2], fields[1::2], strict=False)) for _, fields in rows)
        ids = [text(fields[b"id"]) for fields in named if b"id" in fields]
        return ids, text(rows[-1][0]) if len(rows) == PAGE else None

    def _delayed(self, key: str, after: Any) -> Page:
        """A page by due time; of those that are due at one moment ``skip`` were on pages before."""
        least, skip = after or ("-inf", 0)
        command = ("ZRANGEBYSCORE", key, least, "+inf", "WITHSCORES", "LIMIT", skip, PAGE)
        reply: Any = self._link.one(*command)
        ids, scores = [text(one) for one in reply[::2]], [text(one) for one in reply[1::2]]
        if len(ids) < PAGE:
            return ids, None
        last = scores[-1]
        return ids, (last, scores.count(last) + (skip if last == least else 0))

    def _keep(self, ids: Sequence[str]) -> None:
        while ids:
            jobs = [self._keys.job(job_id) for job_id in ids]
            found: Any = self._link.one(*run_script("blobs_of", jobs, []))
            ids = ids[len(found) :]
            self._prolong(dict.fromkeys(sha for shas in found for sha in text(shas).split()))

    def _prolong(self, shas: Iterable[str]) -> None:
        blobs = [self._keys.blob(sha) for sha in shas]
        for start in range(0, len(blobs), PAGE):
            page = blobs[start : start + PAGE]
            self._link.one(*run_script("keep_blobs", page, [TTL, SLACK]))

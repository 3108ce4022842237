"""Entries of the jobs streams, as the server hands them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxq_worker.queue.connection import text


@dataclass(frozen=True)
class Entry:
    """One entry of a jobs stream that this worker owns.

    ``job_id`` is None if the entry has no ``id`` field. ``taken_over``: another worker (or an
    earlier life of this one) had it before. ``deleted``: only the pending list still knows it.
    """

    stream: str
    id: str
    job_id: str | None = None
    taken_over: bool = False
    deleted: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.stream, self.id


def parse_entries(stream: str, rows: Sequence[Any], *, taken_over: bool = False) -> list[Entry]:
    """Entries from ``[[id, [field, value, ...] or nil], ...]``."""
    return [_parse(stream, row, taken_over) for row in rows if row is not None]


def parse_reply(reply: Any, *, taken_over: bool = False) -> list[Entry]:
    """Entries from an XREADGROUP reply: ``[[stream, rows], ...]`` or nil."""
    return [
        entry
        for stream, rows in reply or ()
        for entry in parse_entries(text(stream), rows, taken_over=taken_over)
    ]


def _parse(stream: str, row: Any, taken_over: bool) -> Entry:
    entry_id, fields = text(row[0]), row[1]
    if fields is None:
        return Entry(stream, entry_id, taken_over=taken_over, deleted=True)
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    job_id = named.get(b"id")
    return Entry(stream, entry_id, None if job_id is None else text(job_id), taken_over)

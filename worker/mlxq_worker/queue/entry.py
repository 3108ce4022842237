"""Entries of the jobs streams, as the server hands them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxq_worker.queue.connection import text

How = Literal["new", "again", "over", "left"]
"""How a worker came by an entry: never read before; one of its own, read once more after a lost
reply; one whose lease ran out; or one that an earlier process of this name left."""


@dataclass(frozen=True)
class Entry:
    """One entry of a jobs stream that this worker owns.

    ``job_id`` is None if the entry has no ``id`` field. ``deleted``: only the pending list still
    knows it.
    """

    stream: str
    id: str
    job_id: str | None = None
    how: How = "new"
    deleted: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.stream, self.id


def parse_entries(stream: str, rows: Sequence[Any], how: How) -> list[Entry]:
    """Entries from ``[[id, [field, value, ...] or nil], ...]``."""
    return [_parse(stream, row, how) for row in rows if row is not None]


def parse_reply(reply: Any, how: How = "new") -> list[Entry]:
    """Entries from an XREADGROUP reply: ``[[stream, rows], ...]`` or nil."""
    return [
        entry for stream, rows in reply or () for entry in parse_entries(text(stream), rows, how)
    ]


def _parse(stream: str, row: Any, how: How) -> Entry:
    entry_id, fields = text(row[0]), row[1]
    if fields is None:
        return Entry(stream, entry_id, how=how, deleted=True)
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    job_id = named.get(b"id")
    return Entry(stream, entry_id, None if job_id is None else text(job_id), how)

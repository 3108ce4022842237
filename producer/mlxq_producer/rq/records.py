"""What is written down of each RQ job that was handed over, so that any intake can end it.

A hash in RQ's Redis, ``Q:rq``: one field a run, that is one mlxq job for one RQ job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis


@dataclass(frozen=True)
class Record:
    """One run: the mlxq job, the RQ job and its execution, who sees to it, and the RQ queue."""

    run: str
    job: str
    execution: str
    worker: str
    queue: str


def run_id(job_id: str, number: int) -> str:
    """The mlxq id of the ``number``-th run of an RQ job; the first has the RQ job's own id."""
    return job_id if number == 1 else f"{job_id}.{number}"


@dataclass(frozen=True)
class Records:
    """The open runs of one mlxq queue; ``key`` is the hash."""

    connection: redis.Redis
    key: str

    def put(self, record: Record) -> None:
        """Write a record down, or over."""
        self.connection.hset(self.key, record.run, json.dumps(asdict(record)))

    def drop(self, run: str) -> None:
        """Forget a run that has ended."""
        self.connection.hdel(self.key, run)

    def has(self, run: str) -> bool:
        """True if the run is open."""
        return bool(self.connection.hexists(self.key, run))

    def of(self, runs: Sequence[str]) -> list[Record]:
        """The records of those of ``runs`` that are open."""
        values: Any = self.connection.hmget(self.key, list(runs)) if runs else []
        return _records(values)

    def all(self) -> list[Record]:
        """Every open run."""
        values: Any = self.connection.hvals(self.key)
        return _records(values)


def _records(values: Iterable[bytes | None]) -> list[Record]:
    return [Record(**json.loads(value)) for value in values if value is not None]

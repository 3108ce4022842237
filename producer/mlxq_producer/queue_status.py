"""One look at a queue: what waits, what runs, who works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from redis.exceptions import ResponseError

from mlxq_producer.steps import Command, Steps, call, checked, refusal
from mlxq_schemas import GROUP, PRIORITIES, Keys, Priority
from mlxq_schemas.clock import seconds_of


@dataclass(frozen=True)
class WorkerStatus:
    """A live worker: its name, and the fields of its row as text (model, rows, heartbeat ...)."""

    name: str
    fields: dict[str, str]

    def number(self, name: str) -> float:
        """A field as a number; 0 where it is missing or none."""
        try:
            return float(self.fields.get(name, 0))
        except ValueError:
            return 0.0


@dataclass(frozen=True)
class QueueStatus:
    """Counts of one queue. ``depth`` holds the jobs not ended by priority, in flight or not."""

    queue: str
    depth: dict[Priority, int]
    in_flight: int
    delayed: int
    dead: int
    oldest_waiting: float | None
    """Seconds since the job that waits longest was queued; None if none waits."""
    workers: list[WorkerStatus]

    @property
    def waiting(self) -> int:
        """Jobs that no worker has taken yet."""
        return max(sum(self.depth.values()) - self.in_flight, 0)

    @property
    def jobs_per_s(self) -> float:
        """Jobs that ended a second, of late, by all workers."""
        return sum(worker.number("jobs_per_s") for worker in self.workers)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second, of late, by all workers."""
        return sum(worker.number("tokens_per_s") for worker in self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rates = {"jobs_per_s": self.jobs_per_s, "tokens_per_s": self.tokens_per_s}
        return {**asdict(self), "waiting": self.waiting, **rates}


def queue_status(keys: Keys) -> Steps[QueueStatus]:
    """Read the status in three round trips, none of them long."""
    streams = keys.all_jobs()
    count = len(streams)
    time, dead, delayed, *depths = yield from checked(
        ("TIME",), ("XLEN", keys.dead), ("ZCARD", keys.delayed), *(("XLEN", s) for s in streams)
    )
    now = seconds_of(time)
    groups = yield from call(*(("XINFO GROUPS", stream) for stream in streams))
    delivered = [_group(reply) for reply in groups]
    names, *first = yield from checked(
        ("ZRANGEBYSCORE", keys.workers, now, "+inf"),
        *(_first_after(s, last) for s, (_, last) in zip(streams, delivered, strict=True)),
    )
    rows = yield from checked(*(("HGETALL", keys.worker(_text(name))) for name in names))
    return QueueStatus(
        queue=keys.queue,
        depth=dict(zip(PRIORITIES, depths[:count], strict=True)),
        in_flight=sum(pending for pending, _ in delivered),
        delayed=delayed,
        dead=dead,
        oldest_waiting=_age(first, now),
        workers=[
            WorkerStatus(_text(name), {_text(k): _text(v) for k, v in row.items()})
            for name, row in zip(names, rows, strict=True)
        ],
    )


def _group(reply: Any) -> tuple[int, str]:
    """Pending entries and last delivered id of the workers' group; none where there is none."""
    if isinstance(reply, ResponseError) and "no such key" in str(reply):
        return 0, "-"
    if isinstance(reply, Exception):
        raise refusal(reply) from reply
    for group in reply:
        if _text(group["name"]) == GROUP:
            return int(group["pending"]), _text(group["last-delivered-id"])
    return 0, "-"


def _first_after(stream: str, last: str) -> Command:
    return ("XRANGE", stream, last if last == "-" else f"({last}", "+", "COUNT", 1)


def _age(first: Sequence[Any], now: float) -> float | None:
    times = [int(_text(entry_id).split("-")[0]) / 1e3 for page in first for entry_id, _ in page]
    return max(now - min(times), 0.0) if times else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

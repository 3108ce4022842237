"""One look at a queue: what waits, what runs, who works, on which server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from redis.exceptions import ResponseError

from mlxq_producer.steps import Command, Steps, call, checked, refusal
from mlxq_producer.worker_status import WorkerStatus
from mlxq_schemas import GROUP, PRIORITIES, Keys, Priority
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import JobError
from mlxq_schemas.wire import decode_job

ENDED_SHOWN: Final = 5
"""Workers that ended lately, at most, the last ones."""


@dataclass(frozen=True)
class ServerStatus:
    """The server; None where its user may not see it. ``memory_limit`` 0: there is none."""

    kind: str | None = None
    version: str | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    eviction_policy: str | None = None


@dataclass(frozen=True)
class QueueStatus:
    """Counts of one queue. ``depth`` holds the jobs not ended by priority, in flight or not;
    ``taken`` those in flight.
    """

    queue: str
    depth: dict[Priority, int]
    taken: dict[Priority, int]
    delayed: int
    dead: int
    oldest_waiting: float | None
    """Seconds since the job that waits longest was queued; None if none waits."""
    oldest_model: str | None
    """The model that it asks for, if it asks for one."""
    workers: list[WorkerStatus]
    """Those whose rows have not run out."""
    ended_workers: list[WorkerStatus] = field(default_factory=list[WorkerStatus])
    """Those that ended or fell silent lately, the last ones."""
    server: ServerStatus = field(default_factory=ServerStatus)
    time: float = 0.0
    """Unix seconds, by the server's clock."""

    @property
    def waiting_by_priority(self) -> dict[Priority, int]:
        """Jobs that no worker has taken yet."""
        return {name: max(self.depth[name] - self.taken[name], 0) for name in self.depth}

    @property
    def waiting(self) -> int:
        """Jobs that no worker has taken yet."""
        return sum(self.waiting_by_priority.values())

    @property
    def in_flight(self) -> int:
        """Jobs that workers have."""
        return sum(self.taken.values())

    @property
    def jobs_per_s(self) -> float:
        """Jobs that ended a second, of late, by all workers."""
        return sum((worker.number("jobs_per_s") for worker in self.workers), 0.0)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second, of late, by all workers."""
        return sum((worker.number("tokens_per_s") for worker in self.workers), 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "queue": self.queue,
            "time": self.time,
            "waiting": self.waiting,
            "waiting_by_priority": self.waiting_by_priority,
            "in_flight": self.in_flight,
            "delayed": self.delayed,
            "dead": self.dead,
            "depth": self.depth,
            "oldest_waiting": self.oldest_waiting,
            "oldest_model": self.oldest_model,
            "jobs_per_s": self.jobs_per_s,
            "tokens_per_s": self.tokens_per_s,
            "workers": [worker.as_dict() for worker in self.workers],
            "ended_workers": [worker.as_dict() for worker in self.ended_workers],
            "server": asdict(self.server),
        }


def queue_status(keys: Keys) -> Steps[QueueStatus]:
    """Read the status in three or four round trips, none of them long, whatever the depth."""
    streams = keys.all_jobs()
    time, dead, delayed, *depths = yield from checked(
        ("TIME",), ("XLEN", keys.dead), ("ZCARD", keys.delayed), *(("XLEN", s) for s in streams)
    )
    now = seconds_of(time)
    *infos, high, normal, low = yield from call(
        ("INFO", "server"), ("INFO", "memory"), *(("XINFO GROUPS", stream) for stream in streams)
    )
    delivered = [_group(reply) for reply in (high, normal, low)]
    ended, live, *first = yield from checked(
        ("ZRANGEBYSCORE", keys.workers, "-inf", now),
        ("ZRANGEBYSCORE", keys.workers, f"({now}", "+inf"),
        *(_first_after(s, last) for s, (_, last) in zip(streams, delivered, strict=True)),
    )
    names = [*live, *ended[-ENDED_SHOWN:]]
    oldest = min((page[0] for page in first if page), key=_queued_at, default=None)
    rows, asked = yield from _rows(keys, names, oldest)
    workers = [
        WorkerStatus(_text(name), {_text(k): _text(v) for k, v in row.items()}, now, i < len(live))
        for i, (name, row) in enumerate(zip(names, rows, strict=True))
    ]
    return QueueStatus(
        queue=keys.queue,
        depth=dict(zip(PRIORITIES, depths, strict=True)),
        taken=dict(zip(PRIORITIES, (pending for pending, _ in delivered), strict=True)),
        delayed=delayed,
        dead=dead,
        oldest_waiting=None if oldest is None else max(now - _queued_at(oldest), 0.0),
        oldest_model=asked,
        workers=workers[: len(live)],
        ended_workers=[worker for worker in workers[len(live) :] if worker.fields],
        server=_server(infos),
        time=now,
    )


def first_not_taken(stream: str) -> Steps[str]:
    """Where the entries of a jobs stream begin that no worker has read."""
    [reply] = yield from call(("XINFO GROUPS", stream))
    return _after(_group(reply)[1])


def _rows(keys: Keys, names: Sequence[Any], oldest: Any) -> Steps[tuple[list[Any], str | None]]:
    """The rows of workers, and the model that the oldest job asks for."""
    rows = yield from checked(*(("HGETALL", keys.worker(_text(name))) for name in names))
    if oldest is None:
        return rows, None
    _, fields = oldest
    job_id = _text(fields.get(b"id", b""))
    [spec] = yield from call(("HGET", keys.job(job_id), "spec"))
    try:
        return rows, decode_job(spec, job_id).model if isinstance(spec, bytes) else None
    except JobError:
        return rows, None


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
    return ("XRANGE", stream, _after(last), "+", "COUNT", 1)


def _after(last: str) -> str:
    return last if last == "-" else f"({last}"


def _queued_at(entry: Any) -> float:
    return int(_text(entry[0]).split("-")[0]) / 1e3


def _server(infos: Sequence[Any]) -> ServerStatus:
    told: dict[str, Any] = {}
    for info in infos:
        if not isinstance(info, Exception):
            told |= info
    kind = told.get("server_name") or ("redis" if "redis_version" in told else None)
    version = told.get(f"{kind}_version") or told.get("redis_version")
    return ServerStatus(
        kind,
        None if version is None else str(version),
        told.get("used_memory"),
        told.get("maxmemory"),
        told.get("maxmemory_policy"),
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

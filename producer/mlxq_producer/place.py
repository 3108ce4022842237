"""Where a job stands in its queue, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mlxq_producer.hindrances import hindrance, idle_words, without_figures
from mlxq_producer.queue_status import QueueStatus, first_not_taken, queue_status
from mlxq_producer.steps import Steps, checked
from mlxq_producer.worker_status import WorkerStatus
from mlxq_schemas import PRIORITIES, Keys
from mlxq_schemas.errors import JobError
from mlxq_schemas.keys import check_name
from mlxq_schemas.quantities import shown_duration
from mlxq_schemas.wire import decode_job

COUNTED: Final = 1000
"""Jobs ahead of one that are counted, at most."""


@dataclass(frozen=True)
class Place:
    """Where a job stands.

    ``state``: ``queued``, ``delayed``, ``running``, how it ended, or "" where nobody knows it.
    ``ahead``: jobs that were to begin before it, of its priority and more urgent ones; more than
    that if not ``exact``. ``begins``: seconds until a delayed job is due. ``worker``: who runs it.
    """

    state: str
    status: QueueStatus
    model: str | None = None
    ahead: int = 0
    exact: bool = True
    begins: float = 0.0
    worker: str = ""

    def told(self) -> str:
        """What it waits for, in words; "" if it has ended."""
        match self.state:
            case "queued":
                count = f"{'' if self.exact else 'more than '}{self.ahead:,} ahead"
                way = hindrance(self.status, self.model)
                return "; ".join(filter(None, ["queued", count, way]))
            case "delayed":
                return f"begins in {shown_duration(self.begins)}"
            case "running":
                return f"running on {self.worker}{self._trouble()}"
            case _:
                return ""

    @property
    def troubled(self) -> bool:
        """True if nobody works on it, or whoever does is not heard."""
        return self.state in ("queued", "delayed") or bool(self._trouble())

    @property
    def kind(self) -> str:
        """The same words without what changes all the time."""
        way = hindrance(self.status, self.model) if self.state == "queued" else self._trouble()
        return f"{self.state} {self.worker} {without_figures(way)}"

    def _trouble(self) -> str:
        """What is wrong with the worker that has the job."""
        known = [*self.status.workers, *self.status.ended_workers]
        found: list[WorkerStatus] = [one for one in known if one.name == self.worker]
        if self.state != "running" or not found or found[0].state not in ("silent", "gone"):
            return ""
        return f", which {idle_words(found[0])}; another worker takes over when its lease ends"


def job_place(keys: Keys, job_id: str) -> Steps[Place]:
    """Look where a job stands, in a few round trips of bounded length."""
    check_name("job id", job_id)
    status = yield from queue_status(keys)
    job = keys.job(job_id)
    fields, due = yield from checked(
        ("HMGET", job, "state", "stream", "entry", "worker", "spec"),
        ("ZSCORE", keys.delayed, job_id),
    )
    *told, spec = fields
    state, stream, entry, worker = map(_text, told)
    if not state and spec is not None:
        state = "queued"  # pushed by hand, and not read yet
    ahead, exact = yield from _ahead(keys, status, stream, entry if state == "queued" else "")
    return Place(
        state=state,
        status=status,
        model=_model(spec, job_id),
        ahead=ahead,
        exact=exact,
        begins=max(float(due) - status.time, 0.0) if due is not None else 0.0,
        worker=worker if state == "running" else "",
    )


def _ahead(keys: Keys, status: QueueStatus, stream: str, entry: str) -> Steps[tuple[int, bool]]:
    streams = keys.all_jobs()
    if not entry or stream not in streams:
        return 0, True
    urgent = PRIORITIES[: streams.index(stream)]
    more = sum(status.waiting_by_priority[name] for name in urgent)
    first = yield from first_not_taken(stream)
    [page] = yield from checked(("XRANGE", stream, first, f"({entry}", "COUNT", COUNTED + 1))
    return more + min(len(page), COUNTED), len(page) <= COUNTED


def _model(spec: Any, job_id: str) -> str | None:
    try:
        return decode_job(spec, job_id).model if isinstance(spec, bytes) else None
    except JobError:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")

"""What stands in the way of jobs, in plain words: no worker, another model, an evicting server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mlxq_producer.queue_status import QueueStatus, ServerStatus
from mlxq_producer.worker_status import WorkerStatus
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.quantities import shown_duration, shown_size

FULL: Final = 0.9
"""Share of a server's memory limit from which on it is told."""
_NO_JOBS: Final = {
    "eviction_policy": "the server may evict jobs",
    "preparation_hangs": "the preparation of its jobs hangs, as on a mount whose server died",
    "name_taken": "another worker has its name",
}
_RANK: Final = ("loading", "blocked", "silent", "draining", "stopping")


def hindrance(status: QueueStatus, model: str | None = None) -> str:
    """Why no worker takes a job (which asks for ``model``), and what to do; "" if one does."""
    if not status.workers:
        return f"no worker is up{_last(status)}: start {start_command(status.queue)}"
    serving = [worker for worker in status.workers if worker.serving]
    if not serving:
        worker = min(status.workers, key=_rank)
        return f"worker {worker.name} {idle_words(worker)}"
    if model is None or any(model in one.names or not one.names for one in serving):
        return ""
    coming = [one for one in status.workers if not one.serving and model in one.names]
    if coming:
        return f"worker {coming[0].name} {idle_words(coming[0])}"
    others = ", ".join(sorted({one.model for one in serving if one.model}))
    return (
        f"no worker has the model {model} (there is {others}): "
        f"start {start_command(status.queue)} --model {model}"
    )


def without_figures(words: str) -> str:
    """Words without what changes all the time."""
    return "".join(c for c in words if not c.isdigit())


def idle_words(worker: WorkerStatus) -> str:
    """What a worker does instead of taking jobs."""
    match worker.state:
        case "loading":
            stage = worker.fields.get("stage", "")
            return f"is not ready yet: {stage}" if stage else "loads its model"
        case "blocked":
            problem = worker.fields.get("problem", "")
            return f"takes no jobs: {_NO_JOBS.get(problem, problem)}"
        case "silent" | "gone":
            return f"has not been heard for {shown_duration(worker.heartbeat_age or 0)}"
        case "draining":
            return "finishes what it has and ends"
        case "stopping":
            return "ends"
        case state:
            return f"is {state}"


def problems(status: QueueStatus) -> list[str]:
    """All that is wrong, a sentence each, the worst first."""
    return list(_problems(status))


def start_command(queue: str) -> str:
    """How one starts a worker of a queue."""
    return "mlxq worker" if queue == DEFAULT_QUEUE else f"mlxq worker --queue {queue}"


def _problems(status: QueueStatus) -> Iterator[str]:
    way = hindrance(status)
    if way:
        yield way
    elif status.oldest_model is not None and (way := hindrance(status, status.oldest_model)):
        yield f"jobs wait, but {way}"
    for worker in status.workers:
        words = f"worker {worker.name} {idle_words(worker)}"
        if worker.state in ("blocked", "silent") and words != way:
            yield words
    yield from _of_server(status.server)


def _of_server(server: ServerStatus) -> Iterator[str]:
    policy, limit = server.eviction_policy, server.memory_limit
    if policy not in (None, "noeviction"):
        yield (
            f"the server may evict jobs (maxmemory-policy {policy}): "
            "CONFIG SET maxmemory-policy noeviction"
        )
    if limit and server.memory_used is not None and server.memory_used >= FULL * limit:
        yield (
            f"the server's memory is nearly full ({shown_size(server.memory_used)} of "
            f"{shown_size(limit)}): raise maxmemory, or let workers catch up"
        )


def _last(status: QueueStatus) -> str:
    """The worker that went last, for the word after "no worker is up"."""
    if not status.ended_workers:
        return ""
    last = status.ended_workers[-1]
    how = "stopped" if last.state == "stopped" else "was last heard"
    return f" ({last.name} {how} {shown_duration(last.heartbeat_age or 0)} ago)"


def _rank(worker: WorkerStatus) -> int:
    state = worker.state
    return _RANK.index(state) if state in _RANK else len(_RANK)

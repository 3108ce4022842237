"""What ``mlxq status`` says, as labels and values; who prints decides about colours and lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlxq_producer.hindrances import idle_words, problems
from mlxq_producer.queue_status import QueueStatus, ServerStatus
from mlxq_producer.worker_status import WorkerStatus
from mlxq_schemas.quantities import shown_duration, shown_size

_PLAIN_STATES = {"ready": "ready, with nothing to do", "working": "working"}


class Line(NamedTuple):
    """A label, its value, and the kind of line: ``head``, ``count``, ``more`` or ``problem``."""

    label: str
    value: str
    kind: str = "count"


def lines(status: QueueStatus, where: str) -> Iterator[Line]:
    """All that is known of a queue on the server at ``where``."""
    yield Line("queue", status.queue, "head")
    yield Line("server", ", ".join([where, *_server(status.server)]))
    yield from _counts(status)
    for problem in problems(status):
        yield Line("problem", problem, "problem")
    for worker in (*status.workers, *status.ended_workers):
        yield from _worker(worker)


def _counts(status: QueueStatus) -> Iterator[Line]:
    waiting = f"{status.waiting:,}"
    if status.oldest_waiting is not None:
        shares = status.waiting_by_priority.items()
        parts = ", ".join(f"{name} {number:,}" for name, number in shares if number)
        waiting += f" ({parts}), the oldest for {shown_duration(status.oldest_waiting)}"
    yield Line("waiting", waiting)
    yield Line("in flight", f"{status.in_flight:,}")
    yield Line("delayed", f"{status.delayed:,}")
    yield Line("dead", f"{status.dead:,}" + (" (mlxq dead list shows them)" if status.dead else ""))
    yield Line("rate", rates(status.jobs_per_s, status.tokens_per_s))


def rates(jobs: float, tokens: float) -> str:
    """As in ``2.5 jobs/s, 120 tokens/s``."""
    return f"{jobs:,.1f} jobs/s, {tokens:,.0f} tokens/s"


def _server(server: ServerStatus) -> Iterator[str]:
    if server.version is not None:
        yield f"{server.kind} {server.version}"
    if server.memory_used is not None:
        limit = f" of {shown_size(server.memory_limit)}" if server.memory_limit else ""
        yield f"memory {shown_size(server.memory_used)}{limit}"
    if server.eviction_policy is not None:
        yield server.eviction_policy


def _worker(worker: WorkerStatus) -> Iterator[Line]:
    yield Line("worker", worker.name, "head")
    yield Line("", _state(worker), "more")
    model = [worker.model, worker.fields.get("device", ""), worker.fields.get("dtype", "")]
    if told := ", ".join(filter(None, model)):
        yield Line("", told, "more")
    if worker.state not in ("stopped", "gone") and worker.number("max_rows"):
        yield Line("", _load(worker), "more")
        if told := ", ".join(_caches(worker)):
            yield Line("", told, "more")


def _state(worker: WorkerStatus) -> str:
    age, up = worker.heartbeat_age or 0.0, worker.uptime
    match worker.state:
        case "stopped":
            return f"stopped {shown_duration(age)} ago"
        case "gone":
            return f"gone: {idle_words(worker)}; it did not end in order"
        case state:
            told = _PLAIN_STATES.get(state, f"{state}: {idle_words(worker)}")
            since = "" if up is None else f", up {shown_duration(up)}"
            heard = "" if worker.heartbeat_age is None else f", heard {shown_duration(age)} ago"
            return told + since + ("" if state == "silent" else heard)


def _load(worker: WorkerStatus) -> str:
    rows, most, waiting = (int(worker.number(name)) for name in ("rows", "max_rows", "waiting"))
    done, failed = (int(worker.number(name)) for name in ("done", "failed"))
    speed = rates(worker.number("jobs_per_s"), worker.number("tokens_per_s"))
    taken = f", {waiting:,} prepared" if waiting else ""
    return f"{rows:,} of {most:,} rows busy{taken}; {done:,} done, {failed:,} failed; {speed}"


def _caches(worker: WorkerStatus) -> Iterator[str]:
    if asked := worker.number("prompt_tokens"):
        share = worker.number("cached_tokens") / asked
        yield f"{share:.0%} of prompt tokens from caches"
    for name, what in (("prefix", "prefixes"), ("feature", "pictures")):
        hits, misses = worker.number(f"{name}_hits"), worker.number(f"{name}_misses")
        if hits + misses:
            size = shown_size(int(worker.number(f"{name}_bytes")))
            yield f"{what} {hits / (hits + misses):.0%} hits, {size}"
    if disk := int(worker.number("disk_bytes")):
        yield f"on disk {shown_size(disk)}"

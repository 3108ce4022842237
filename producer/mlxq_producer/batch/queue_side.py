"""What a batch asks of the queue's server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlxq_producer.batch.lines import BadLine
from mlxq_producer.batch.record import Batch
from mlxq_producer.batch.rows import Sent
from mlxq_producer.steps import Command, Steps, call, checked, refusal, server_time
from mlxq_schemas import Keys, Result
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import UnknownJob
from mlxq_schemas.events import TERMINAL_TYPES
from mlxq_schemas.keys import check_name
from mlxq_schemas.wire import decode_result

WRITTEN_TTL = 600
"""Seconds for which a finished job is kept once its row is written."""
PAGE = 500
"""Rows of a stream, and results, that are read at once."""


def results_from_now() -> Steps[str]:
    """Where in the results stream the rows of jobs begin that end from now on."""
    now = yield from server_time()
    return f"{int(now * 1000)}-0"


def ended_since(keys: Keys, cursor: str) -> Steps[tuple[str, list[str]]]:
    """Ids of jobs, anybody's, that ended after ``cursor``, and the cursor after them."""
    command: Command = ("XRANGE", keys.results, f"({cursor}", "+", "COUNT", PAGE)
    [rows] = yield from checked(command)
    ids = [fields[b"id"].decode() for _, fields in rows]
    return (rows[-1][0].decode() if rows else cursor), ids


def results(keys: Keys, ids: Sequence[str]) -> Steps[dict[str, Result | None]]:
    """The results of jobs that have one; None for jobs of which nothing is left.

    A job that has not ended is not among them.
    """
    found: dict[str, Result | None] = {}
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        # In this order: a job that has ended is seen with its result, or that is gone.
        looks = ((("HGET", keys.job(i), "state"), ("GET", keys.result(i))) for i in page)
        replies = yield from checked(*(command for look in looks for command in look))
        for job_id, state, data in zip(page, replies[::2], replies[1::2], strict=True):
            if data is not None:
                found[job_id] = decode_result(data)
            elif state is None or state.decode() in TERMINAL_TYPES:
                found[job_id] = None
    return found


def let_go(keys: Keys, ids: Sequence[str]) -> Steps[None]:
    """Shorten what is kept of finished jobs with rows: millions would fill a server."""
    names = (n for i in ids for n in (keys.job(i), keys.events(i), keys.result(i)))
    yield from checked(*(("EXPIRE", name, WRITTEN_TTL) for name in names))


def save_batch(keys: Keys, batch: Batch) -> Steps[bool]:
    """Keep the batch object on the server; returns whether somebody asks to cancel the batch."""
    key = keys.batch(batch.id)
    _, _, cancel, time = yield from checked(
        ("HSET", key, "batch", batch.model_dump_json(exclude_none=True)),
        ("EXPIRE", key, batch.ttl),
        ("HGET", key, "cancel"),
        ("TIME",),
    )
    batch.clock.learn(seconds_of(time))
    return cancel is not None


def load_batch(keys: Keys, batch_id: str) -> Steps[tuple[Batch, dict[str, Any]]]:
    """The batch object and the other fields beside it; raises :class:`UnknownJob`."""
    check_name("batch id", batch_id)
    fields, time = yield from checked(("HGETALL", keys.batch(batch_id)), ("TIME",))
    if b"batch" not in fields:
        raise UnknownJob(
            f"queue {keys.queue} has no batch {batch_id}: it was submitted to another queue, "
            "or ended so long ago that it is gone (TTL)"
        )
    others = {name.decode(): value for name, value in fields.items() if name != b"batch"}
    batch = Batch.model_validate(json.loads(fields[b"batch"]))
    batch.clock.learn(seconds_of(time))
    return batch, others


def ask_to_cancel(keys: Keys, batch: Batch) -> Steps[None]:
    """Leave word for whoever sends the lines of a batch."""
    key = keys.batch(batch.id)
    yield from checked(("HSET", key, "cancel", "1"), ("EXPIRE", key, batch.ttl))


def forget_wish(keys: Keys, batch: Batch) -> Steps[None]:
    """A batch that was cancelled is taken up again."""
    yield from checked(("HDEL", keys.batch(batch.id), "cancel"))


def add_lines(keys: Keys, batch: Batch, lines: Sequence[Sent | BadLine]) -> Steps[None]:
    """Keep what became of the lines of a detached batch; those that are there already stay."""
    key = keys.batch_lines(batch.id)
    adds: list[Command] = [("XADD", key, f"{one.number}-0", "line", _pack(one)) for one in lines]
    for reply in (yield from call(*adds, ("EXPIRE", key, batch.ttl))):
        if isinstance(reply, Exception) and "equal or smaller" not in str(reply):
            raise refusal(reply)


def lines_after(keys: Keys, batch_id: str, number: int) -> Steps[list[Sent | BadLine]]:
    """The next page of the lines of a detached batch."""
    command = ("XRANGE", keys.batch_lines(batch_id), f"{number + 1}-0", "+", "COUNT", PAGE)
    [rows] = yield from checked(command)
    return [_unpack(entry, fields[b"line"]) for entry, fields in rows]


def states(keys: Keys, ids: Sequence[str]) -> Steps[list[str | None]]:
    """The states of jobs; None for one of which nothing is left."""
    found = yield from checked(*(("HGET", keys.job(job_id), "state") for job_id in ids))
    return [None if state is None else state.decode() for state in found]


def _pack(one: Sent | BadLine) -> bytes:
    fields = asdict(one)
    del fields["number"]
    return json.dumps(fields).encode()


def _unpack(entry: bytes, data: bytes) -> Sent | BadLine:
    fields = json.loads(data)
    number = int(entry.partition(b"-")[0])
    return (BadLine if "code" in fields else Sent)(number, **fields)

"""``mlxq follow``, ``mlxq result``, ``mlxq cancel``: what becomes of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from mlxq_producer.cli.options import JobId, Json, Queue, RedisUrl, Wait
from mlxq_producer.cli.output import print_events, print_json, print_result
from mlxq_producer.cli.waiting import Waiting, to_stderr
from mlxq_producer.client import Producer
from mlxq_schemas import DEFAULT_QUEUE

_OUTCOMES = {
    "cancelled": "cancelled",
    "asked": "asked its worker to end it",
    "ended": "had ended already",
}


def follow(
    job_id: JobId,
    from_seq: Annotated[
        int, typer.Option(metavar="N", min=0, help="Begin at this event number.")
    ] = 0,
    wait: Wait = None,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Print a job's text from its beginning, then live; with --json one event a line."""
    with Producer(redis_url, queue) as producer:
        show_events(producer, job_id, from_seq=from_seq, wait=wait, as_json=as_json)


def result(
    job_id: JobId,
    wait: Wait = 0,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Print the text of a job that has ended; with --json the whole result."""
    with Producer(redis_url, queue) as producer:
        show_result(producer, job_id, wait=wait, as_json=as_json)


def cancel(
    job_id: JobId,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Cancel a job that waits or runs."""
    with Producer(redis_url, queue) as producer:
        outcome = producer.cancel(job_id)
    if as_json:
        print_json({"id": job_id, "outcome": outcome})
    else:
        print(f"{job_id} {_OUTCOMES[outcome]}")


def show_events(
    producer: Producer, job_id: str, *, from_seq: int = 0, wait: float | None, as_json: bool
) -> None:
    """Print what becomes of a job as it comes, and what it waits for where nothing does."""
    with Waiting(producer, job_id, say=None if as_json else to_stderr) as waiting:
        events = producer.follow(job_id, from_seq=from_seq, timeout=wait)
        print_events(waiting.over(events), as_json=as_json)


def show_result(producer: Producer, job_id: str, *, wait: float | None, as_json: bool) -> None:
    """Print a job's result, and meanwhile what it waits for."""
    with Waiting(producer, job_id, say=None if as_json else to_stderr):
        result = producer.result(job_id, wait=wait)
    print_result(result, as_json=as_json)

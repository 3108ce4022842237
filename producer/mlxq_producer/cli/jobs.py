"""``mlxq follow``, ``mlxq result``, ``mlxq cancel``: what becomes of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from mlxq_producer.cli.options import JobId, Json, Queue, RedisUrl, Wait
from mlxq_producer.cli.output import print_events, print_json, print_result
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
        print_events(producer.follow(job_id, from_seq=from_seq, timeout=wait), as_json=as_json)


def result(
    job_id: JobId,
    wait: Wait = 0,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Print the text of a job that has ended; with --json the whole result."""
    with Producer(redis_url, queue) as producer:
        print_result(producer.result(job_id, wait=wait), as_json=as_json)


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

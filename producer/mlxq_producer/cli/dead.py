"""``mlxq dead``: jobs that failed, to be looked at, sent again, or dropped."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from mlxq_producer.cli.commands import App
from mlxq_producer.cli.options import JobId, Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration
from mlxq_producer.client import Producer
from mlxq_producer.dead import DeadLetter
from mlxq_producer.errors import RetryErrors
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import ConfigError, UnknownJob

dead = App(help="List, show, retry or drop jobs that failed.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Job ids.")]
Code = Annotated[
    str | None, typer.Option(metavar="CODE", help="Only those that failed with this error code.")
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION", parser=duration, help="Only those dead for longer: 90s, 15m, 2h, 7d."
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every dead letter; needed where none is chosen.")]


@dead.command("list")
def list_dead(
    ids: Ids = None,
    code: Code = None,
    older_than: OlderThan = None,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """List dead letters, the oldest first; with --json one a line."""
    with Producer(redis_url, queue) as producer:
        letters = producer.dead(ids or None, code=code, older_than=older_than)
    for letter in letters:
        if as_json:
            print_json(letter.as_dict())
        else:
            print(_line(letter))


@dead.command()
def show(
    job_id: JobId,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Show one dead letter in full."""
    with Producer(redis_url, queue) as producer:
        letters = producer.dead(job_id)
    if not letters:
        raise _no_letter([job_id], queue)
    for name, value in letters[-1].as_dict().items():
        if not as_json:
            print(f"{name}: {value}")
    if as_json:
        print_json(letters[-1].as_dict())


@dead.command()
def retry(
    ids: Ids = None,
    code: Code = None,
    older_than: OlderThan = None,
    everything: All = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Send dead jobs again, with fresh attempts; prints the ids of those sent."""
    chosen = _chosen(ids, code, older_than, everything)
    with Producer(redis_url, queue) as producer:
        try:
            sent = producer.retry_dead(**chosen)
        except RetryErrors as error:
            _print_ids(error.sent, as_json=as_json)
            raise
    _print_ids(sent, as_json=as_json)
    _miss(ids, sent, queue)


@dead.command()
def drop(
    ids: Ids = None,
    code: Code = None,
    older_than: OlderThan = None,
    everything: All = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Drop dead letters and what is kept of their jobs; prints the ids of those dropped."""
    chosen = _chosen(ids, code, older_than, everything)
    with Producer(redis_url, queue) as producer:
        dropped = [letter.id for letter in producer.drop_dead(**chosen)]
    _print_ids(dropped, as_json=as_json)
    _miss(ids, dropped, queue)


def _chosen(
    ids: list[str] | None, code: str | None, older_than: float | None, everything: bool
) -> dict[str, Any]:
    """Arguments of the producer's methods. Raises :class:`ConfigError` if nothing was chosen."""
    narrowed = bool(ids) or code is not None or older_than is not None
    if narrowed == everything:
        raise ConfigError(
            "say which dead letters: ids, --code or --older-than; or --all, and nothing else"
        )
    return {"ids": ids or None, "code": code, "older_than": older_than}


def _miss(ids: list[str] | None, done: list[str], queue: str) -> None:
    if missing := [job_id for job_id in ids or () if job_id not in done]:
        raise _no_letter(missing, queue)


def _no_letter(ids: list[str], queue: str) -> UnknownJob:
    return UnknownJob(
        f"queue {queue} has no dead letter of {', '.join(ids)} that fits, or its record is gone "
        '(TTL): "mlxq dead list" shows what there is'
    )


def _print_ids(ids: list[str], *, as_json: bool) -> None:
    for job_id in ids:
        if as_json:
            print_json({"id": job_id})
        else:
            print(job_id)
    if not ids and not as_json:
        print("none", file=sys.stderr)


def _line(letter: DeadLetter) -> str:
    when = datetime.fromtimestamp(letter.t, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    message = " ".join(letter.message.split())
    return f"{letter.id or '-'}  {when}  {letter.code}  {message}"

"""``mlxq submit``: queue a job from the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxq_producer.cli.job_options import check_options
from mlxq_producer.cli.jobs import show_events, show_result
from mlxq_producer.cli.options import Json, Queue, RedisUrl, Wait
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration, moment
from mlxq_producer.client import Producer
from mlxq_producer.errors import SubmitErrors
from mlxq_producer.media import expanded, read_media
from mlxq_schemas import DEFAULT_QUEUE, Priority
from mlxq_schemas.errors import BadMessage, ConfigError, EmptyPrompt
from mlxq_schemas.plain import read_json

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def submit(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask; - reads stdin."),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", metavar="PATH|URL", help="An image; may be repeated."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message before the prompt.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Most new tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="0 takes the likeliest token.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(metavar="X", help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="N", help="Sample from N tokens.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Same seed, same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model to insist on.")] = None,
    priority: Annotated[
        Priority | None, typer.Option(case_sensitive=False, help="How urgent.")
    ] = None,
    not_before: Annotated[
        float | None, typer.Option(metavar="TIME", parser=moment, help="Begin no sooner.")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=duration, help="The same, from now: 90s, 2h ..."),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="TIME", parser=moment, help="Expire then.")
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=duration, help="The same, from now: 90s, 2h ..."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=duration, help="Most run time of an attempt."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Tries, where an error may pass.")
    ] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Job id; the same job is taken once.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Jobs as JSON, one object or one a line, instead."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the text as it comes.")
    ] = False,
    wait: Wait = None,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Queue a job and print its id; with --follow or --wait, print its text."""
    fields: dict[str, Any] = {
        "id": job_id,
        "model": model,
        "priority": priority,
        "not_before": _one_of("not-before", not_before, "delay", delay),
        "deadline": _one_of("deadline", deadline, "within", within),
        "timeout": timeout,
        "max_attempts": max_attempts,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
    }
    check_options(fields)
    asked = [prompt, system, image or None, *fields.values()]
    if job is None:
        jobs = [{**fields, **_question(prompt, system, image or [])}]
    elif any(value is not None for value in asked):
        raise ConfigError("--job holds whole jobs: leave --prompt, --image and the others out")
    else:
        jobs = _read_jobs(job)
        if not jobs:
            raise ConfigError(f"--job {job} holds no job: write one JSON object a line")
        if len(jobs) != 1 and (follow or wait is not None):
            raise ConfigError(f"--job {job} holds {len(jobs)} jobs; --follow and --wait take one")
    with Producer(redis_url, queue) as producer:
        if delay is not None or within is not None:
            now = producer.now()
            jobs[0] |= {name: now + after for name, after in _from_now(delay, within).items()}
        ids = _send(producer, jobs, quiet=follow or wait is not None, as_json=as_json)
        if follow:
            show_events(producer, ids[0], wait=wait, as_json=as_json)
        elif wait is not None:
            show_result(producer, ids[0], wait=wait, as_json=as_json)


def _one_of(name: str, moment: float | None, other: str, after: float | None) -> float | None:
    """The time or the duration, whichever was given."""
    if moment is not None and after is not None:
        raise ConfigError(f"give --{name} or --{other}, not both")
    return moment if after is None else after


def _from_now(delay: float | None, within: float | None) -> dict[str, float]:
    """Seconds from now, by the server's clock, of the fields that were given so."""
    given = {"not_before": delay, "deadline": within}
    return {name: after for name, after in given.items() if after is not None}


def _question(prompt: str | None, system: str | None, images: list[str]) -> dict[str, Any]:
    """The fields that hold what is asked. Raises ``EmptyPrompt``, ``MediaNotFound``."""
    if prompt is None:
        raise ConfigError("nothing to ask: give --prompt TEXT (- reads stdin), or --job FILE")
    text = _stdin() if prompt == "-" else prompt
    if not text.strip():
        raise EmptyPrompt("the prompt is empty; say what the model should do")
    for image in images:
        if not _URL.match(image):
            read_media(expanded(image))
    if system is None:
        return {"prompt": text, "images": images}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": image}} for image in images
    ]
    user = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return {"messages": [{"role": "system", "content": system}, user]}


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text: {error}") from error


def _read_jobs(source: str) -> list[dict[str, Any]]:
    """Jobs of a file (or stdin): one JSON object, or one a line. Raises :class:`BadMessage`."""
    try:
        text = _stdin() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read --job {source}: {error}") from error
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        return [_fields(read_json(text), source)]
    except ValueError as error:
        if len(lines) == 1 or not isinstance(error, json.JSONDecodeError):
            raise _not_json(source, error) from error
    return [_parse_line(line, f"{source}, line {i}") for i, line in lines]


def _parse_line(line: str, where: str) -> dict[str, Any]:
    try:
        return _fields(read_json(line), where)
    except ValueError as error:
        raise _not_json(where, error) from error


def _not_json(where: str, error: ValueError) -> BadMessage:
    return BadMessage(f"{where}: not JSON ({error}); nothing was submitted")


def _fields(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadMessage(f"{where}: not a JSON object with a job's fields; nothing was submitted")
    return value


def _send(
    producer: Producer, jobs: list[dict[str, Any]], *, quiet: bool, as_json: bool
) -> list[str]:
    """Submit and print the ids, also those accepted beside jobs that are refused."""
    if len(jobs) == 1:
        ids = [producer.submit(jobs[0])]
        _print_ids([] if quiet else ids, as_json=as_json)
        return ids
    try:
        ids = producer.submit_many(jobs)
    except SubmitErrors as error:
        _print_ids([job_id for job_id in error.ids if job_id is not None], as_json=as_json)
        raise
    _print_ids(ids, as_json=as_json)
    return ids


def _print_ids(ids: list[str], *, as_json: bool) -> None:
    for job_id in ids:
        if as_json:
            print_json({"id": job_id})
        else:
            print(job_id)

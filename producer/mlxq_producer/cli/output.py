"""What commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import typer

from mlxq_producer.cli.failures import EXIT_JOB_NOT_FINISHED, complain
from mlxq_schemas import (
    Cancelled,
    Event,
    ExpiredEvent,
    Failed,
    Result,
    Retrying,
    Token,
    is_terminal,
)
from mlxq_schemas.plain import to_json


def print_json(value: Any) -> None:
    """One line of strict JSON, at once."""
    print(to_json(value), flush=True)


def print_events(events: Iterable[Event], *, as_json: bool) -> None:
    """Print events as they come, or their text; exits with 3 if the job does not finish."""
    last: Event | None = None
    for last in events:
        if as_json:
            print_json(last.model_dump(mode="json", exclude_none=True))
        else:
            _print_text(last)
    if isinstance(last, Failed | Cancelled | ExpiredEvent):
        if not as_json:
            complain_of(last)
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result, or its text; exits with 3 if the job did not finish."""
    if as_json:
        print_json(result.model_dump(mode="json", exclude_none=True))
    else:
        if result.text or result.ok:
            print(result.text)
        if not result.ok:
            complain_of(result)
    if not result.ok:
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)


def complain_of(end: Failed | Cancelled | ExpiredEvent | Result) -> None:
    """Say on stderr why a job has no full text."""
    code = getattr(end, "code", None) or end.type
    message = getattr(end, "message", None) or f"job {end.job} was {end.type}"
    complain(code, message)


def _print_text(event: Event) -> None:
    if isinstance(event, Token):
        print(event.text, end="", flush=True)
    elif isinstance(event, Retrying) and event.restart:
        print(f"\n[{event.code}; the text begins anew]", file=sys.stderr)
    elif is_terminal(event):
        print(flush=True)

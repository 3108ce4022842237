"""``mlxq status``: one look at a queue, or one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.status_words import Line, lines
from mlxq_producer.cli.times import duration
from mlxq_producer.client import Producer
from mlxq_producer.hindrances import problems
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import ConfigError, QueueUnavailable

PERIOD: Final = 2.0
"""Seconds between two looks, where none are given."""
SHORTEST: Final = 0.1
_STYLES: Final = {"head": "bold", "problem": "red"}


def status(
    seconds: Annotated[
        str | None,
        typer.Argument(metavar="[SECONDS]", help="With --watch: time from one look to the next."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again.")] = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Show what waits, what runs, who works, and what is wrong."""
    if seconds is not None and not watch:
        raise ConfigError(f"unexpected: {seconds}")
    period = PERIOD if seconds is None else max(duration(seconds), SHORTEST)
    with Producer(redis_url, queue) as producer:
        if not watch:
            _show(producer, as_json=as_json)
            return
        with suppress(KeyboardInterrupt):  # the way to end it
            if sys.stdout.isatty() and not as_json:
                _redraw(producer, period)
            else:
                _repeat(producer, period, as_json=as_json)


def _show(producer: Producer, *, as_json: bool) -> None:
    found = producer.status()
    if as_json:
        print_json({**found.as_dict(), "problems": problems(found)})
        return
    told = lines(found, producer.where)
    if sys.stdout.isatty():
        Console(highlight=False).print(_picture(told))
    else:
        print("\n".join(_plain(told)), flush=True)


def _repeat(producer: Producer, period: float, *, as_json: bool) -> None:
    """A look after another, for a log or a script; the first must be had."""
    _show(producer, as_json=as_json)
    while True:
        time.sleep(period)
        if not as_json:
            print()
        try:
            _show(producer, as_json=as_json)
        except QueueUnavailable as error:
            print(f"error[{error.code}]: {error.message}; trying again", file=sys.stderr)


def _redraw(producer: Producer, period: float) -> None:
    """Redraw in place until Ctrl-C; the last picture stays."""
    picture = _picture(lines(producer.status(), producer.where))
    with Live(picture, console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            time.sleep(period)
            try:
                picture = _picture(lines(producer.status(), producer.where))
            except QueueUnavailable as error:
                picture = _picture([Line("problem", f"{error.message}; trying again", "problem")])
            live.update(picture, refresh=True)


def _picture(told: Iterable[Line]) -> RenderableType:
    """Labels and values; what is too long for a line goes on below, and nothing is cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value, kind in told:
        table.add_row(Text(label, "dim"), Text(value, _STYLES.get(kind, "")))
    return table


def _plain(told: Iterable[Line]) -> Iterator[str]:
    """The same for a pipe: a line each."""
    for label, value, kind in told:
        yield f"  {value}" if kind == "more" else f"{label}: {value}"

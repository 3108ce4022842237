"""How the demo looks: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from mlxq_producer.cli.demo_report import Row, Summary


class View(Protocol):
    """Shows the demo while it runs."""

    def stage(self, text: str) -> None:
        """Say what is being done."""
        ...

    def changed(self, row: Row) -> None:
        """A job has got an event."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Quiet:
    """Shows nothing: the result is printed as data."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def changed(self, row: Row) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class Lines(Quiet):
    """One line a job, once it has ended."""

    def stage(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)

    def changed(self, row: Row) -> None:
        """Print the row if it has ended."""
        if row.ended:
            print(f"{_mark(row)} {row.name}: {_outcome(row)}", flush=True)


class LiveTable:
    """A table of all jobs whose text grows."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._stage = ""
        self._live = Live(
            get_renderable=self._table,
            refresh_per_second=10,
            transient=True,
            vertical_overflow="crop",
        )

    def stage(self, text: str) -> None:
        """Show it as the table's title."""
        self._stage = text

    def changed(self, row: Row) -> None:
        """The next refresh shows it."""

    def _table(self) -> Table:
        return jobs_table(self._rows, self._stage)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        if kind is None:
            Console().print(jobs_table(self._rows, "jobs"))


def choose_view(rows: list[Row], *, as_json: bool) -> View:
    """The view that fits where stdout goes."""
    if as_json:
        return Quiet()
    return LiveTable(rows) if sys.stdout.isatty() else Lines()


def jobs_table(rows: list[Row], title: str) -> Table:
    """All jobs, a row each."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("prompt", max_width=28, no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    table.add_column("text", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in rows:
        # Prompts and texts may hold what rich would take for markup.
        prompt, text = escape(" ".join(row.prompt.split())), escape(_outcome(row))
        table.add_row(escape(row.name), prompt, f"[{_colour(row)}]{row.state}[/]", text)
    return table


def print_summary(summary: Summary, rows: list[Row]) -> None:
    """The demo's end, for people."""
    print(f"\n{summary.right} of {summary.expected} captions right, {summary.failed} job(s) failed")
    for row in rows:
        if row.state == "failed":
            print(f"  {row.name}: {row.code}: {row.message}")
    if summary.tokens_per_s is not None:
        print(
            f"{summary.tokens} tokens in {summary.seconds:.2f} s: {summary.tokens_per_s} tokens/s"
        )
    if summary.median_ttft_s is not None:
        print(f"median time to first token: {summary.median_ttft_s:.3f} s")


def _outcome(row: Row) -> str:
    return " ".join((row.text if row.code is None else f"{row.code}: {row.message}").split())


def _mark(row: Row) -> str:
    return "ok   " if row.right else "WRONG"


def _colour(row: Row) -> str:
    if row.ended:
        return "green" if row.right else "red"
    return "yellow" if row.started else "dim"

"""The demo's end, for people: every caption, and what the run came to."""

from __future__ import annotations

import sys

from rich.console import Console

from mlxq_producer.cli.demo_report import Row, Summary
from mlxq_producer.cli.view import Entry
from mlxq_producer.cli.view.screen import entry_lines
from mlxq_producer.cli.view.words import outcome


def entry(row: Row) -> Entry:
    """A job of the demo as views show it."""
    ended = bool(row.ended)
    told = (row.message or "").removeprefix(f"job {row.id}: ")
    message = told or (row.state if ended and row.state != "finished" else "")
    code = row.code or (row.state if message else None)
    return Entry(row.name, row.text, code, message, row.prompt, ended, row.right or not ended)


def print_end(summary: Summary, rows: list[Row]) -> None:
    """Print all jobs, a line each, and the numbers last, where a small window shows them."""
    entries = [entry(row) for row in rows]
    if sys.stdout.isatty():
        console = Console(highlight=False)
        for line in entry_lines(entries, console.width):
            console.print(line)
    else:
        for row, one in zip(rows, entries, strict=True):
            print(f"{'ok   ' if row.right else 'WRONG'} {row.name}: {outcome(one)}")
    print(f"\n{summary.right} of {summary.expected} captions right; {_failures(summary)}")
    if summary.tokens_per_s is not None:
        speed = f"{summary.tokens} tokens in {summary.seconds:.2f} s: {summary.tokens_per_s}"
        print(f"{speed} tokens/s")
    if summary.median_ttft_s is not None:
        print(f"median time to first token: {summary.median_ttft_s:.3f} s")


def _failures(summary: Summary) -> str:
    wanted = min(summary.failed, summary.expected_failures)
    told = f"{wanted} of {summary.expected_failures} broken pictures refused, as they should be"
    return told if summary.failed == wanted else f"{told}; {summary.failed} jobs failed"

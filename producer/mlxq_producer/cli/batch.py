"""``mlxq batch``: OpenAI batch files."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mlxq_producer.batch import Batch, BatchRun, DetachedBatches
from mlxq_producer.batch.running import DAY, WINDOW
from mlxq_producer.cli.failures import EXIT_JOB_NOT_FINISHED
from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration
from mlxq_producer.connection import connect
from mlxq_schemas import DEFAULT_QUEUE, Priority

batch = typer.Typer(help="Run OpenAI batch files (JSONL) through the queue.", no_args_is_help=True)

Input = Annotated[Path, typer.Argument(metavar="IN.jsonl", help="One request a line.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Where response rows go.")
]
Errors = Annotated[
    Path | None,
    typer.Option(metavar="ERR.jsonl", help="Where error rows go (default: OUT.errors.jsonl)."),
]
CompletionWindow = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION", parser=duration, help="Lines not done by then expire (default: 24h)."
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(metavar="NAME|any", help="Model to insist on, whatever the lines name."),
]
Urgency = Annotated[Priority, typer.Option(help="How urgent.")]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="Batch id, as printed by submit.")]
MediaRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Local images must lie here (default: beside IN.jsonl)."),
]


@batch.command()
def run(
    source: Input,
    output: Output,
    errors: Errors = None,
    window: Annotated[int, typer.Option(metavar="N", min=1, help="Most lines in flight.")] = WINDOW,
    completion_window: CompletionWindow = None,
    model: ModelName = None,
    priority: Urgency = "normal",
    media_root: MediaRoot = None,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Do every line of a file; after a kill, the same command goes on where it was."""
    errors = errors or error_path(output)
    with connect(redis_url, queue) as client:
        found = BatchRun(
            client,
            queue,
            source,
            output,
            errors,
            window,
            DAY if completion_window is None else completion_window,
            model,
            priority,
            media_root,
        ).run(Progress())
    show(found, as_json=as_json)
    if found.request_counts.failed or found.request_counts.open:
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)


@batch.command()
def submit(
    source: Input,
    completion_window: CompletionWindow = None,
    model: ModelName = None,
    priority: Urgency = "normal",
    media_root: MediaRoot = None,
    batch_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Go on with a submission that broke off."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Send every line of a file and print the batch's id; nobody needs to wait."""
    with connect(redis_url, queue) as client:
        found = DetachedBatches(client, queue).submit(
            source,
            DAY if completion_window is None else completion_window,
            model=model,
            priority=priority,
            media_root=media_root,
            batch_id=batch_id,
            report=lambda begun: print(f"sending {begun.id}", file=sys.stderr),
        )
    if as_json:
        show(found, as_json=True)
    else:
        print(found.id)


@batch.command()
def status(
    batch_id: BatchId,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Count the lines of a batch by what became of them."""
    with connect(redis_url, queue) as client:
        show(DetachedBatches(client, queue).status(batch_id), as_json=as_json)


@batch.command()
def cancel(
    batch_id: BatchId,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Cancel the lines of a batch that have not ended, also those of a run."""
    with connect(redis_url, queue) as client:
        show(DetachedBatches(client, queue).cancel(batch_id), as_json=as_json)


@batch.command()
def fetch(
    batch_id: BatchId,
    output: Output,
    errors: Errors = None,
    wait: Annotated[
        float, typer.Option("--wait", "-w", metavar="SECONDS", min=0, help="Wait for its end.")
    ] = 0,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Write the rows of a batch that has ended."""
    errors = errors or error_path(output)
    with connect(redis_url, queue) as client:
        found = DetachedBatches(client, queue).fetch(batch_id, output, errors, wait)
    show(found, as_json=as_json)
    if found.request_counts.failed or found.request_counts.open:
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)


@dataclass
class Progress:
    """Says on stderr how far a run is: each second on a terminal, else each half minute."""

    began: float = field(default_factory=time.monotonic)
    first: int | None = None
    due: float = 0.0

    def __call__(self, found: Batch) -> None:
        counts, now = found.request_counts, time.monotonic()
        rows = counts.completed + counts.failed
        if self.first is None:
            self.first = rows
        live = sys.stderr.isatty()
        if not live and now < self.due and not found.ended:
            return
        self.due = now + 30.0
        rate = (rows - self.first) / max(now - self.began, 0.001)
        text = f"{found.id}: {counts.completed:,} done, {counts.failed:,} failed, {rate:,.1f}/s"
        end = "\n" if found.ended or not live else ""
        print(f"\r\x1b[K{text}" if live else text, end=end, file=sys.stderr, flush=True)


def error_path(output: Path) -> Path:
    """The error file that goes with an output file."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def show(found: Batch, *, as_json: bool) -> None:
    """Print a batch object, or what people want to know of it."""
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))
        return
    counts = found.request_counts
    text = f"{found.id} {found.status}: {counts.completed:,} of {counts.total:,} done"
    if counts.failed:
        text += f", {counts.failed:,} failed"
        text += f" ({found.error_file_id})" if found.error_file_id else ""
    if found.ended and counts.open:
        text += f", {counts.open:,} lost: the server holds nothing of them any more"
    print(text)

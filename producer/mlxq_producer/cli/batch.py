"""``mlxq batch``: OpenAI batch files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mlxq_producer.batch import Batch, BatchRun, DetachedBatches
from mlxq_producer.batch.running import DAY, WINDOW
from mlxq_producer.cli.batch_run import Shown, why_failed
from mlxq_producer.cli.commands import App
from mlxq_producer.cli.failures import EXIT_JOB_NOT_FINISHED, end_in_order_when_terminated
from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration
from mlxq_producer.cli.view import Board, live_view
from mlxq_producer.cli.view.screen import print_latest
from mlxq_producer.cli.view.words import clock, rates
from mlxq_producer.connection import connect
from mlxq_schemas import DEFAULT_QUEUE, Priority

batch = App(help="Run OpenAI batch files (JSONL) through the queue.")

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
    typer.Option(metavar="NAME|any", help="Stands for the models that the lines name."),
]
Urgency = Annotated[Priority, typer.Option(case_sensitive=False, help="How urgent.")]
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
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do lines that have error rows again.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on where the first 20 lines all fail alike.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="When interrupted, let the jobs under way go on.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Do every line of a file; after a kill, the same command goes on where it was.

    Lines that name a model of OpenAI's need --model any: it takes what the workers serve.
    """
    end_in_order_when_terminated()
    errors = errors or error_path(output)
    with connect(redis_url, queue) as client:
        shown = Shown(
            BatchRun(
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
                retry_failed,
                keep_going,
                detach,
            )
        )
        try:
            found = shown.run(live_view(shown.board))
        finally:
            if shown.batch is not None:
                tell_end(shown.batch, errors, shown.board, as_json=as_json)
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
        float,
        typer.Option(
            "--wait", "-w", metavar="DURATION", parser=duration, help="Wait for its end: 90s, 2h."
        ),
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


def error_path(output: Path) -> Path:
    """The error file that goes with an output file."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def tell_end(found: Batch, errors: Path, board: Board, *, as_json: bool) -> None:
    """What a run came to, however it ended."""
    if not found.ended and board.total is not None:
        found.request_counts.total = board.total  # lines that were not read are open too
    if not as_json:
        print_latest(board)
    show(found, as_json=as_json)
    if not as_json:
        counts = board.counts()
        for reason in why_failed(errors) if found.request_counts.failed else ():
            print(f"  {reason}")
        if counts.done + counts.failed:
            print(f"{clock(board.elapsed)}: {rates(*board.average())}")
    if found.request_counts.failed:
        print("the same line with --retry-failed does the failed ones again", file=sys.stderr)
    if not found.ended:
        print("ended early: the same line goes on where this one stopped", file=sys.stderr)


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

"""``mlxq watch``: caption what appears in a folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from mlxq_producer.cli.failures import EXIT_JOB_NOT_FINISHED, complain_of_item
from mlxq_producer.cli.job_options import check_options
from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration
from mlxq_producer.client import Producer
from mlxq_producer.pipeline.item import Row
from mlxq_producer.pipeline.pictures import PassedOver
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.sidecars import Kind
from mlxq_producer.pipeline.sources import Sources
from mlxq_producer.pipeline.template import Literal as Text
from mlxq_producer.pipeline.watching import Watch
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import ConfigError, QueueError


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder, with its subfolders.")],
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask of each picture.")
    ] = "Describe the image.",
    sidecar: Annotated[
        Kind,
        typer.Option(case_sensitive=False, help="Suffix of the file that a caption is written to."),
    ] = "txt",
    full_names: Annotated[
        bool, typer.Option("--full-names", help="Write a.png.txt, not a.txt.")
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Most new tokens.")] = None,
    interval: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=duration, help="Time from one look to the next."),
    ] = "2s",  # pyright: ignore[reportArgumentType] - typer parses it
    once: Annotated[
        bool, typer.Option("--once", help="End when everything in the folder has been seen to.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Caption each picture that appears in a folder, once it is completely written."""
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: check the path")
    check_options({"max_tokens": max_tokens})
    plan = Plan(
        sources=Sources([str(folder)]),
        prompt=Text(prompt),
        sampling={} if max_tokens is None else {"max_tokens": max_tokens},
        sidecars=(sidecar,),
        full_names=full_names,
    )

    def show(row: Row) -> None:
        if as_json:
            print_json(row.as_dict())
        elif row.ok:
            print(row.source, flush=True)
        else:
            complain_of_item(row.source, row.code or row.status, row.message)

    def tell(over: PassedOver) -> None:
        if as_json:
            print_json({"type": "passed_over", "kinds": over})
        else:
            print(over.told(), file=sys.stderr, flush=True)

    def kept(name: str) -> None:
        if as_json:
            print_json({"type": "edited", "file": name})
        else:
            print(f"edited, and kept as it is: {name}", file=sys.stderr, flush=True)

    with Producer(redis_url, queue) as producer:
        watching = Watch(folder, plan, producer, show, passed=tell, edited=kept)
        while True:
            try:
                left = watching.look()
            except QueueError as error:
                if once:
                    raise
                print(f"error[{error.code}]: {error.message}; trying again", file=sys.stderr)
                left = 1
            if once and not left and not watching.waiting:
                break
            time.sleep(interval)
    if watching.failed:
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)

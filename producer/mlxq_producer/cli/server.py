"""``mlxq server``: a Redis-compatible server whose queue outlives it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from mlxq_producer.cli.failures import end_in_order_when_terminated
from mlxq_producer.embedded import EmbeddedServer

PORT: Final = 6379
LOOK_SECONDS: Final = 0.5


def data_folder() -> Path:
    """Where the platform keeps the data of programs."""
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/mlxq").expanduser()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "mlxq"


def server(
    port: Annotated[
        int, typer.Option(metavar="N", min=1, max=65535, help="Port on 127.0.0.1.")
    ] = PORT,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the queue is kept (default: ~/.local/share/mlxq, on a Mac "
            "~/Library/Application Support/mlxq).",
        ),
    ] = None,
) -> None:
    """Run a server for queues on this machine: no job is lost when it ends, or is evicted.

    It is the Redis or Valkey that is installed, or the one of mlxq[embedded], with an append-only
    file and noeviction. It ends with this command, in order on SIGTERM and Ctrl-C.
    """
    end_in_order_when_terminated()
    folder = data_folder() if data_dir is None else data_dir
    with EmbeddedServer(data_dir=folder, port=port) as running:
        variable = "" if port == PORT else f"MLXQ_REDIS_URL={running.url} "
        print(f"{running.url}, its data in {folder}", flush=True)
        print(f"next: {variable}mlxq worker", flush=True)
        while running.wait(LOOK_SECONDS) is None:
            pass
        running.must_run()

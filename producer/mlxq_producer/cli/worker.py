"""``mlxq worker`` and ``mlxq cache``: become processes of the worker package."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import typer

from mlxq_producer.worker_command import worker_command

PASS_THROUGH: Final[dict[str, Any]] = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""They explain their own options: ``mlxq worker --help`` reaches the worker as it is."""


def worker(context: typer.Context) -> None:
    """Run a worker: load a model, drain the queue ("mlxq worker --help" shows how)."""
    _become(worker_command(*context.args))


def cache(context: typer.Context) -> None:
    """Look after the folder of caches on SSD: stats, verify, clear, warm ("mlxq cache --help")."""
    _become(worker_command(*context.args, module="mlxq_worker.cache"))


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - no shell wanted

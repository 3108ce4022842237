"""How a worker process is started."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final

from mlxq_producer.connection import QUEUE_VARIABLE, URL_VARIABLE
from mlxq_schemas.errors import EXIT_DEVICE_FAILED, ConfigError

DEVICE_VARIABLE: Final = "MLXQ_DEVICE"
_NEEDED: Final = ("mlx", "mlx_vlm", "mlxq_worker")


def worker_command(*arguments: str, module: str = "mlxq_worker") -> list[str]:
    """The command line of a worker; raises :class:`ConfigError` where none is installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"no worker on this machine ({', '.join(missing)} not installed): "
            'pip install "mlxq[worker]"'
        )
    return [sys.executable, "-P", "-m", module, *arguments]


def worker_environment(url: str, queue: str) -> dict[str, str]:
    """For processes of our own: this server and queue, and of the user's settings none but the
    device, which is the machine's.

    Not on their command lines, which anyone on the machine may read: the URL may hold a password.
    """
    kept = {
        n: v for n, v in os.environ.items() if n == DEVICE_VARIABLE or not n.startswith("MLXQ_")
    }
    return {**kept, URL_VARIABLE: url, QUEUE_VARIABLE: queue}


def worker_end(status: int) -> str:
    """How a worker ended, by its exit status."""
    if status == EXIT_DEVICE_FAILED:
        return (
            "the worker ended because its device (GPU or memory) failed again and again "
            f"(status {status}); no job was lost"
        )
    return f"the worker ended with status {status}"

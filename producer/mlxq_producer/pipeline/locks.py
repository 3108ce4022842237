"""One run at a time on each output."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from mlxq_producer.errors import OutputInUse

STATE_FOLDER: Final = ".mlxq"
"""Beside outputs: ledgers and locks. Folders that begin with a dot are no source of items."""


class Locks:
    """Locks held until :meth:`release`, or until the process ends, however it does."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def take(self, output: Path, *, shared: bool = False) -> None:
        """Lock an output; with ``shared`` beside other sharers. Raises :class:`OutputInUse`."""
        path = state_path(output, "lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise OutputInUse(
                f"another run is writing {output}: wait for it, or give this one another output "
                "(runs that share the work take --shard 1/2, --shard 2/2)"
            ) from error
        self._held.append(handle)

    def release(self) -> None:
        """Give all locks back."""
        while self._held:
            os.close(self._held.pop())


def state_path(output: Path, kind: str) -> Path:
    """Where the lock or ledger of an output is: in a hidden folder inside it, or beside a file."""
    if output.parent.name == STATE_FOLDER:
        return output.with_name(f"{output.name}.{kind}")
    if output.is_dir():
        return output / STATE_FOLDER / f"captions.{kind}"
    return output.parent / STATE_FOLDER / f"{output.name}.{kind}"

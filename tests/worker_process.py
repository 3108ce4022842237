"""Worker processes for tests, without a model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PATIENCE = 120.0


def eventually(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until ``condition`` holds; fail if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen within {PATIENCE} s")
        time.sleep(0.01)


class WorkerProcess:
    """``python -m mlxq_worker``, or another ``program``, as a child; its log is in ``log``."""

    def __init__(
        self, log: Path, *arguments: str, program: Sequence[str] = ("-m", "mlxq_worker")
    ) -> None:
        self._path = log
        self._file = log.open("wb")
        self.process = subprocess.Popen([sys.executable, *program, *arguments], stderr=self._file)

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_ready(self) -> None:
        eventually(
            lambda: " ready " in self.log or self.process.poll() is not None, f"ready: {self.log}"
        )
        assert self.process.poll() is None, self.log

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.kill()
        self._file.close()


HARMFUL = (str(Path(__file__).with_name("harmful_worker.py")),)
"""The program of a worker whose prompts can do harm."""

StartWorker = Callable[..., WorkerProcess]

"""Child processes that leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from mlxq_producer import guard


class ChildProcess:
    """A command that runs no longer than this process, however this process ends.

    Its output goes to ``log``; ``environment`` replaces ours. It has a session of its own, so
    that Ctrl-C in a terminal reaches only us and we end it in order.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(  # noqa: S603 - no shell, and our caller's command
                [sys.executable, "-I", "-S", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def poll(self) -> int | None:
        """Exit status, or None while the command runs."""
        return self._guard.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command to end by itself; returns its exit status.

        Raises :class:`subprocess.TimeoutExpired` after ``timeout`` seconds.
        """
        return self._guard.wait(timeout)

    def stop(self) -> int:
        """End the command (SIGTERM, after a grace time SIGKILL); returns its exit status."""
        pipe: IO[bytes] | None = self._guard.stdin
        if pipe is not None:
            pipe.close()
        return self._guard.wait()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

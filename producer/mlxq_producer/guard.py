"""Runs a command, and ends it when standard input closes: whoever started it is gone or done.

Run as a script, with no import but the standard library::

    python guard.py COMMAND [ARGUMENT ...]

A child that is tied to its parent by a pipe ends with it however the parent ends, kill -9
included, on Linux and macOS alike. ``PR_SET_PDEATHSIG`` would do this on Linux only, and there
would watch the thread that started the child, not the process. Exits with the command's status.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to the end of standard input."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our caller's

    def end(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        child.terminate()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _watch(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # sys.stdin's lock, held here at exit, would abort the interpreter
        pass
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The lock on a cache folder, with a limit on how long one waits for it."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PAUSE: Final = 0.001
"""Seconds between tries, on average: short, and never in step with a holder that comes again."""
_LOCKS: Final = Path("/proc/locks")


def acquire(fd: int, path: Path, seconds: float) -> None:
    """Lock the open file ``path``; raises :class:`TimeoutError`, whose text names the holder."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                reason = f"{path} is still locked by {_holder(fd)} after {seconds:g} s"
                raise TimeoutError(errno.ETIMEDOUT, reason) from None
        time.sleep(random.uniform(0, 2 * _PAUSE))  # noqa: S311


def release(fd: int) -> None:
    """Unlock, for a forked child may hold the descriptor too, and close; no error is left."""
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    """Who holds the lock, where the system tells."""
    try:
        file = os.fstat(fd)
        place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        for line in _LOCKS.read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF; a waiter has an arrow before FLOCK
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place:
                return f"process {fields[4]}"
    except (OSError, IndexError):
        pass
    return "another process (lsof may tell which)"

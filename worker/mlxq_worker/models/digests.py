"""Digests of large files, each computed once and remembered over restarts."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

LARGE: Final = 1 << 20
"""Bytes: smaller files are read each time."""
_SETTLED_NS: Final = 2 * 10**9
"""A file changed so lately may change again within one tick of its clock: it is not remembered."""
_MOST: Final = 4096
"""Files remembered."""
_SLOW: Final = 1 << 30
"""Bytes from which on a start says what it waits for."""
_THREADS: Final = 4
_TRIES: Final = 3


class Changing(OSError):
    """A file was written to while it was read."""


def digests(files: Iterable[Path], memory: Path | None = None) -> dict[Path, bytes]:
    """The sha256 of each file. Raises OSError.

    What is in ``memory`` (default: a file of this user) is believed as long as path, size, times
    of change, inode and device are the same; nothing else is read then.
    """
    memory = memory or default_memory()
    known = _recall(memory)
    found: dict[Path, bytes] = {}
    missing: list[Path] = []
    for file in files:
        entry = known.get(str(file.resolve()))
        if entry is not None and entry[:-1] == _look(file):
            found[file] = bytes.fromhex(entry[-1])
        else:
            missing.append(file)
    if not missing:
        return found
    total = sum(file.stat().st_size for file in missing)
    if total >= _SLOW:
        log.info(
            "reading weights once to tell models apart; later starts remember",
            extra={"files": len(missing), "gigabytes": round(total / 1e9, 1)},
        )
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="digest") as pool:
        for file, (entry, digest) in zip(missing, pool.map(_read, missing), strict=True):
            found[file] = digest
            if entry is not None:
                known.pop(str(file.resolve()), None)
                known[str(file.resolve())] = [*entry, digest.hex()]
    _remember(memory, known)
    return found


def default_memory() -> Path:
    """Where this user's digests are kept."""
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "mlxq" / "digests.json"


def _look(file: Path) -> list[int]:
    """What changes with a file's content. A time of change cannot be put back, as others can."""
    found = file.stat()
    return [
        *(found.st_size, found.st_mtime_ns, found.st_ctime_ns),
        *(found.st_ino, found.st_dev),
    ]


def _read(file: Path) -> tuple[list[int] | None, bytes]:
    """The digest of a file, and what to remember it by if it may be."""
    for _ in range(_TRIES):
        before = _look(file)
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").digest()
        if _look(file) == before:
            settled = max(before[1], before[2]) < time.time_ns() - _SETTLED_NS
            return (before if settled and before[0] >= LARGE else None), digest
    raise Changing(f"{file} changes while it is read: wait until it is complete")


def _recall(memory: Path) -> dict[str, list[Any]]:
    """What is remembered; nothing of what another user may have written."""
    try:
        with memory.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                log.warning("%s is not this user's alone: it is not believed", memory)
                return {}
            entries = json.loads(stream.read())
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {str(path): entry for path, entry in entries.items() if _is_entry(entry)}


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 6
        and all(type(value) is int for value in entry[:-1])
        and isinstance(entry[-1], str)
        and len(entry[-1]) == 64
        and not set(entry[-1]) - set("0123456789abcdef")
    )


def _remember(memory: Path, known: Mapping[str, list[Any]]) -> None:
    """Replace the file at once, so that who reads it finds all of it; without it all goes on."""
    kept = dict(list(known.items())[-_MOST:])
    with suppress(OSError):
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=memory.parent, prefix=memory.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(kept, stream)
            Path(name).replace(memory)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

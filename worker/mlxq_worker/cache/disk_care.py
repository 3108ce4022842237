"""Looking after a cache folder by hand: what is in it, is it whole, away with it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mlxq_worker.cache.disk_folder import CacheFolder, key_of
from mlxq_worker.cache.disk_format import Damage, Damaged, Space, read
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_ledger import Ledger

_PORTION: Final = 256
"""Blocks removed at a time: workers have their turn in between."""
_PAUSE: Final = 0.005


@dataclass
class Report:
    """What reading every file showed.

    ``layouts``: whole blocks and bytes by layout. ``damaged``: files put into quarantine, by
    kind. ``unreadable``: files that the disk did not give. ``strangers``: files that are not
    ours and were left alone. ``stale``: files of dead writers, removed.
    """

    blocks: int = 0
    bytes: int = 0
    layouts: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    damaged: Counter[str] = field(default_factory=Counter[str])
    unreadable: int = 0
    strangers: int = 0
    stale: int = 0

    @property
    def clean(self) -> bool:
        """True if every block is whole."""
        return not self.damaged.total() and not self.unreadable

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "damaged": dict(self.damaged), "clean": self.clean}


def verify(folder: CacheFolder) -> Report:
    """Read every file; blocks that are damaged, too new or misnamed go to the quarantine.

    Whole blocks of any layout are right: workers of several models may share a folder.
    """
    report = Report()
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        report.stale, freed = folder.remove_stale()
        ledger.grow(-freed)
        ledger.write(fd)
    for path in _files(folder):
        if not _is_block(folder, path):
            report.strangers += 1
            continue
        try:
            _check(folder, path, report)
        except FileNotFoundError:
            continue  # evicted meanwhile
        except Damaged as error:
            _put_away(folder, path, error.kind, report)
        except OSError:
            report.unreadable += 1
    return report


def _put_away(folder: CacheFolder, path: Path, kind: str, report: Report) -> None:
    try:
        report.damaged[kind] += folder.put_away(path, kind)
    except OSError:
        report.unreadable += 1


def _check(folder: CacheFolder, path: Path, report: Report) -> None:
    with folder.opened(path.parent) as fd:
        size = os.stat(path.name, dir_fd=fd, follow_symlinks=False).st_size
        stored = read(path, Space(), folder.trust, folder_fd=fd)
    if stored.block.key != key_of(path.name):
        raise Damaged(Damage.FOREIGN, "named by another key")
    report.blocks += 1
    report.bytes += size
    layout = report.layouts.setdefault(stored.layout, {"blocks": 0, "bytes": 0})
    layout["blocks"] += 1
    layout["bytes"] += size


def survey(folder: CacheFolder) -> dict[str, Any]:
    """Sizes and times, without reading a block; times in seconds since 1970."""
    index = Index(folder)
    index.refresh()
    keys = [key_of(path.name) for path in _files(folder)]
    used = sorted(index.used(key) / 1e9 for key in keys if key and index.size(key))
    writing = folder.sizes(folder.temporary)
    damaged = folder.sizes(folder.quarantine)
    return {
        "folder": str(folder.root),
        "blocks": index.count,
        "bytes": index.bytes,
        "oldest_use": used[0] if used else None,
        "newest_use": used[-1] if used else None,
        "writing_files": len(writing),
        "writing_bytes": sum(writing.values()),
        "quarantined_files": len(damaged),
        "quarantined_bytes": sum(damaged.values()),
        "written_last_day": folder.read_ledger().last_day(time.time()),
    }


def clear(folder: CacheFolder) -> int:
    """Remove all blocks, damaged files and leftovers; the number of blocks.

    What living workers are writing stays, and so does what was written in the last day's ledger.
    """
    removed = 0
    while portion := _portion(folder):
        with folder.lock() as fd:
            ledger = Ledger.read(fd)
            ledger.grow(-folder.remove(portion))
            ledger.write(fd)
        removed += len(portion)
        time.sleep(_PAUSE)
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        ledger.grow(-folder.remove_stale()[1])
        ledger.grow(-folder.remove(folder.sizes(folder.quarantine)))
        ledger.write(fd)
    return removed


def _portion(folder: CacheFolder) -> dict[Path, int]:
    blocks = (path for path in _files(folder) if _is_block(folder, path))
    found: dict[Path, int] = {}
    for path in islice(blocks, _PORTION):
        with suppress(FileNotFoundError):
            found[path] = path.lstat().st_size
    return found


def _is_block(folder: CacheFolder, path: Path) -> bool:
    """False for what somebody else has put there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (
        key_of(path.name) is not None
        and path.name[:2] == path.parent.name
        and not path.suffix
        and folder.trust.believes_file(found)
    )


def _files(folder: CacheFolder) -> Iterator[Path]:
    for fan in folder.fans:
        if folder.changed(fan):
            with suppress(FileNotFoundError):
                yield from sorted(fan.iterdir())

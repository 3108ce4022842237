"""Looking after a cache folder by hand: what is in it, is it whole, away with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxq_worker.cache.disk_folder import CacheFolder, key_of
from mlxq_worker.cache.disk_format import Damage, Damaged, Space, read
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_ledger import Ledger


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
    with folder.lock():
        report.stale = folder.remove_stale()[0]
    for path in _files(folder):
        if not _is_block(path):
            report.strangers += 1
            continue
        try:
            _check(path, report)
        except FileNotFoundError:
            continue  # evicted meanwhile
        except Damaged as error:
            report.damaged[error.kind] += folder.put_away(path, error.kind)
        except OSError:
            report.unreadable += 1
    return report


def _check(path: Path, report: Report) -> None:
    size = path.lstat().st_size
    stored = read(path, Space())
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
    keys = [key_of(path.name) for path in _files(folder) if _is_block(path)]
    used = sorted(index.used(key) / 1e9 for key in keys if key)
    writing = folder.sizes(folder.temporary)
    damaged = folder.sizes(folder.quarantine)
    with folder.lock() as fd:
        written = Ledger.read(fd).last_day(time.time())
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
        "written_last_day": written,
    }


def clear(folder: CacheFolder) -> int:
    """Remove all blocks, damaged files and leftovers; the number of blocks.

    What living workers are writing stays, and so does what was written in the last day's ledger.
    """
    with folder.lock():
        folder.remove_stale()
        blocks = [path for path in _files(folder) if _is_block(path)]
        folder.release(blocks)
        folder.release(folder.sizes(folder.quarantine))
    return len(blocks)


def _is_block(path: Path) -> bool:
    """False for what somebody else has put there."""
    return (
        key_of(path.name) is not None
        and path.name[:2] == path.parent.name
        and not path.suffix
        and not path.is_symlink()
        and path.is_file()
    )


def _files(folder: CacheFolder) -> Iterator[Path]:
    for fan in folder.fans:
        with suppress(FileNotFoundError):
            yield from sorted(fan.iterdir())

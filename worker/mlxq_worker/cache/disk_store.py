"""Blocks put into the folder, within its bounds. No threads here: the writer's thread calls it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from mlxq_worker.cache.disk_folder import CacheFolder, Temporary, key_of, sync_folder
from mlxq_worker.cache.disk_format import encode
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_ledger import HOUR, Ledger
from mlxq_worker.cache.host import HostBlock


class Refusal(StrEnum):
    """Why a block is not written."""

    PRESENT = "present"  # it is there, or another worker is writing it
    BUDGET = "budget"  # enough was written today
    TOO_LARGE = "too_large"  # no room even if all else went
    QUEUE = "queue"  # more waits for the disk than may
    RAM_ONLY = "ram_only"  # the disk is full or broken, or we are closing


class DiskStore:
    """Adds and evicts. ``max_bytes`` bounds all files of all workers together, whole or not.

    ``write_budget``: most bytes written in 24 hours by all workers together; 0: no limit.
    """

    def __init__(
        self, folder: CacheFolder, *, max_bytes: int, layout: str, write_budget: int
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._layout = layout
        self._budget = write_budget
        self._unsynced: set[Path] = set()
        self.index = Index(folder)
        self.counts: Counter[str] = Counter()
        self.spent_until = 0.0
        """Until then (seconds since 1970) the write budget allows nothing more."""

    def start(self) -> None:
        """Learn what is there; remove what dead processes left; keep to a smaller bound."""
        with self._folder.lock():
            self._remove_stale()
            self._make_room(self._total() - self._max_bytes)

    def put(self, block: HostBlock, used_ns: int) -> Refusal | None:
        """Write a block that was last of use at ``used_ns``; None if it is there now.

        Raises :class:`OSError` if the disk refuses; then no part of the block is left.
        """
        parts = encode(block, self._layout)
        size = sum(len(part) for part in parts)
        with self._folder.lock() as ledger:
            reserved = self._reserve(ledger, block.key, size)
        if isinstance(reserved, Refusal):
            return reserved
        try:
            reserved.fill(parts, used_ns)
            reserved.commit(self._folder.path(block.key))
        except OSError:
            reserved.drop()
            self._folder.prepare()  # the next try shall not fail for want of a folder
            raise
        self._unsynced.add(self._folder.path(block.key).parent)
        self.index.add(block.key, size, used_ns)
        self.counts["written_blocks"] += 1
        self.counts["written_bytes"] += size
        return None

    def sync(self) -> None:
        """Write the names of new files to the disk itself. The files are there already, so that
        a power cut before this costs blocks, and never leaves half of one.
        """
        while self._unsynced:
            with suppress(FileNotFoundError):
                sync_folder(self._unsynced.pop())

    def persist_uses(self, uses: Mapping[bytes, int]) -> None:
        """Let other workers and the next start know when blocks were of use (nanoseconds)."""
        for key, used in uses.items():
            with suppress(FileNotFoundError):
                os.utime(self._folder.path(key), ns=(used, used), follow_symlinks=False)

    def written_last_day(self) -> int:
        """Bytes that all workers wrote in the last day."""
        with self._folder.lock() as fd:
            return Ledger.read(fd).last_day(time.time())

    def _reserve(self, ledger_fd: int, key: bytes, size: int) -> Temporary | Refusal:
        total = self._total()
        if self.index.size(key) or self._is_coming(key):
            return Refusal.PRESENT
        if size > self._max_bytes:
            return Refusal.TOO_LARGE
        now = time.time()
        ledger = Ledger.read(ledger_fd)
        if self._budget and ledger.last_day(now) + size > self._budget:
            self.spent_until = (now // HOUR + 1) * HOUR  # the next hour forgets another
            return Refusal.BUDGET
        if not self._make_room(total + size - self._max_bytes):
            return Refusal.TOO_LARGE
        ledger.charge(now, size)
        ledger.write(ledger_fd)
        return Temporary.make(self._folder, key, size)

    def _total(self) -> int:
        """Bytes of all files, looked at in the order in which files move."""
        writing = sum(self._folder.sizes(self._folder.temporary).values())
        self.index.refresh()
        damaged = sum(self._folder.sizes(self._folder.quarantine).values())
        return writing + self.index.bytes + damaged

    def _is_coming(self, key: bytes) -> bool:
        """True if a living process is writing this block."""
        if not any(key_of(path.name) == key for path in self._folder.sizes(self._folder.temporary)):
            return False
        self._remove_stale()
        return any(key_of(path.name) == key for path in self._folder.sizes(self._folder.temporary))

    def _remove_stale(self) -> int:
        files, freed = self._folder.remove_stale()
        self.counts["stale_files"] += files
        return freed

    def _make_room(self, need: int) -> bool:
        """Remove at least ``need`` bytes: leftovers, then damaged files, then what is oldest."""
        if need > 0:
            need -= self._remove_stale()
        if need > 0:
            damaged = self._folder.sizes(self._folder.quarantine)
            self._folder.release(damaged)
            need -= sum(damaged.values())
        while need > 0 and (key := self.index.oldest()) is not None:
            need -= self._evict(key)
        return need <= 0

    def _evict(self, key: bytes) -> int:
        """Remove a block, unless another worker has used it lately; the bytes that it gave."""
        path = self._folder.path(key)
        size = self.index.size(key)
        try:
            if self.index.use(key, path.stat().st_mtime_ns):
                return 0
            path.unlink()
        except FileNotFoundError:
            size = 0  # it is in the quarantine now, or somebody removed it by hand
        self.index.discard(key)
        self.counts["evicted_blocks"] += bool(size)
        self.counts["evicted_bytes"] += size
        return size

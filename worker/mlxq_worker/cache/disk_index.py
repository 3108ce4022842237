"""Which blocks are in the folder, how large, and when each was last of use.

Nothing is stored: file names say what is there, and a folder's time of change says whether to
look again. So other processes' writes and evictions are seen without a word between us.
"""

from __future__ import annotations

import heapq
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlxq_worker.cache.disk_folder import FANS, CacheFolder, key_of

_TICK_NS: Final = 100_000_000
"""A folder that changed so lately may change again without a new time: clocks are coarse."""


@dataclass(slots=True)
class Entry:
    """``size`` in bytes; ``used``: nanoseconds since 1970."""

    size: int
    used: int


class Index:
    """Blocks by key. One thread refreshes and evicts; any thread asks."""

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._fans: list[dict[bytes, Entry]] = [{} for _ in range(FANS)]
        self._seen = [0] * FANS
        self._heap: list[tuple[int, bytes]] = []
        self.count = 0
        self.bytes = 0

    def size(self, key: bytes) -> int:
        """Bytes of a block's file; 0 if it is not there."""
        entry = self._fans[key[0]].get(key)
        return entry.size if entry else 0

    def used(self, key: bytes) -> int:
        """When a block was last of use, in nanoseconds since 1970; 0 if it is not there."""
        entry = self._fans[key[0]].get(key)
        return entry.used if entry else 0

    def add(self, key: bytes, size: int, used: int) -> None:
        """A block is there now."""
        with self._lock:
            self._drop(key)
            self._fans[key[0]][key] = Entry(size, used)
            heapq.heappush(self._heap, (used, key))
            self.count += 1
            self.bytes += size

    def discard(self, key: bytes) -> None:
        """A block is there no more."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        entry = self._fans[key[0]].pop(key, None)
        if entry:
            self.count -= 1
            self.bytes -= entry.size

    def use(self, key: bytes, when: int) -> bool:
        """A block was of use at ``when``; False if it is not there, or was so later already."""
        with self._lock:
            entry = self._fans[key[0]].get(key)
            if entry is None or entry.used >= when:
                return False
            entry.used = when
            heapq.heappush(self._heap, (when, key))
            if len(self._heap) > 1000 + 4 * self.count:
                self._heap = [(e.used, k) for fan in self._fans for k, e in fan.items()]
                heapq.heapify(self._heap)
            return True

    def oldest(self) -> bytes | None:
        """The block that was of no use for longest."""
        with self._lock:
            while self._heap:
                used, key = self._heap[0]
                entry = self._fans[key[0]].get(key)
                if entry and entry.used == used:
                    return key
                heapq.heappop(self._heap)
            return None

    def refresh(self) -> None:
        """Look at each folder that has changed since the last look."""
        for number, path in enumerate(self._folder.fans):
            try:
                changed = path.stat().st_mtime_ns
            except FileNotFoundError:
                self._seen[number] = 0
                self._apply(number, set(), {})
                continue
            if changed == self._seen[number]:
                continue
            now = time.time_ns()
            self._look(number, path)
            self._seen[number] = changed if changed < now - _TICK_NS else 0

    def _look(self, number: int, path: Path) -> None:
        known = self._fans[number]
        names: set[bytes] = set()
        fresh: dict[bytes, Entry] = {}
        with suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                key = key_of(entry.name)
                if key is None or len(entry.name) != 2 * len(key) or key[0] != number:
                    continue
                names.add(key)
                if key not in known:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(found.st_mode):
                            fresh[key] = Entry(found.st_size, found.st_mtime_ns)
        self._apply(number, names, fresh)

    def _apply(self, number: int, names: set[bytes], fresh: dict[bytes, Entry]) -> None:
        for key in [key for key in list(self._fans[number]) if key not in names]:
            self.discard(key)
        for key, entry in fresh.items():
            self.add(key, entry.size, entry.used)

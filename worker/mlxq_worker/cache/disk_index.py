"""Which blocks are in the folder, how large, and when each was last of use.

Nothing is stored: file names say what is there, and a folder's time of change says whether to
look again. So other processes' writes and evictions are seen without a word between us.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlxq_worker.cache.disk_folder import FANS, CacheFolder, key_of
from mlxq_worker.cache.host import KEY_BYTES

_TICK_NS: Final = 100_000_000
"""A folder that changed so lately may change again without a new time: clocks are coarse."""
_STEP_NS: Final = 1_000_000_000
"""A clock that goes back by more than this was set."""


@dataclass(slots=True)
class Entry:
    """``size`` in bytes; ``used``: nanoseconds since 1970."""

    size: int
    used: int


class Index:
    """Blocks by key. One thread refreshes and evicts; any thread asks.

    ``strangers``: files under names of blocks that are not believed, by the last look at each
    folder.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._fans: list[dict[bytes, Entry]] = [{} for _ in range(FANS)]
        self._seen = [0] * FANS
        self._strangers: dict[int, list[Path]] = {}
        self._unfinished: list[Path] = []
        # (used, key) as it was when pushed: one that was of use since is put right when it
        # comes up, so that a use costs no more than a number.
        self._heap: list[tuple[int, bytes]] = []
        self._latest = 0
        self._mended: dict[bytes, int] = {}
        self.count = 0
        self.bytes = 0

    @property
    def strangers(self) -> list[Path]:
        return [path for paths in list(self._strangers.values()) for path in paths]

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
            if len(self._heap) > 1000 + 2 * self.count:
                self._rebuild()

    def discard(self, key: bytes) -> None:
        """A block is there no more."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        entry = self._fans[key[0]].pop(key, None)
        if entry:
            self.count -= 1
            self.bytes -= entry.size

    def _rebuild(self) -> None:
        self._heap = [(e.used, k) for fan in self._fans for k, e in fan.items()]
        heapq.heapify(self._heap)

    def use(self, key: bytes, when: int) -> bool:
        """A block was of use at ``when``; False if it is not there, or was so later already."""
        entry = self._fans[key[0]].get(key)
        if entry is None or entry.used >= when:
            return False
        entry.used = when
        return True

    def oldest(self) -> bytes | None:
        """The block that was of no use for longest."""
        with self._lock:
            while self._heap:
                used, key = self._heap[0]
                entry = self._fans[key[0]].get(key)
                if entry is None:
                    heapq.heappop(self._heap)
                elif entry.used != used:
                    heapq.heapreplace(self._heap, (entry.used, key))
                else:
                    return key
            return None

    def victims(self, need: int, before: int | None, most: int) -> tuple[list[bytes], bool]:
        """The blocks to remove for ``need`` bytes, the oldest first, ``most`` at a time.

        False if that is not enough, for none is left that was not of use since ``before``
        (nanoseconds; None: whichever it is).
        """
        found: list[tuple[int, bytes]] = []
        try:
            while need > 0 and len(found) < most:
                key = self.oldest()
                if key is None or (before is not None and self.used(key) >= before):
                    return [key for _, key in found], False
                with self._lock:
                    found.append(heapq.heappop(self._heap))
                need -= self.size(key)
            return [key for _, key in found], True
        finally:
            with self._lock:
                for item in found:
                    heapq.heappush(self._heap, item)

    def refresh(self) -> None:
        """Look at each folder that has changed since the last look."""
        for number, path in enumerate(self._folder.fans):
            changed = self._folder.changed(path)
            if not changed:  # it is gone, or somebody's link
                self._seen[number] = 0
                self._apply(list(self._fans[number]), {})
                continue
            if changed == self._seen[number]:
                continue
            now = time.time_ns()
            self._look(number, path)
            self._seen[number] = changed if changed < now - _TICK_NS else 0
        self._keep_to_the_clock(time.time_ns())

    def mended(self) -> dict[bytes, int]:
        """Blocks whose times were ahead of the clock, and the times to store for them."""
        mended, self._mended = self._mended, {}
        return mended

    def _look(self, number: int, path: Path) -> None:
        try:
            names = set(os.listdir(path))  # noqa: PTH208 - of most of them no more is wanted
        except OSError:
            return
        known = set(map(bytes.hex, list(self._fans[number])))
        fresh: dict[bytes, Entry] = {}
        strangers: list[Path] = []
        for name in names - known:
            key = key_of(name)
            if key is None or key[0] != number:
                continue
            if len(name) != 2 * KEY_BYTES:
                self._unfinished.append(path / name)
                continue
            with suppress(OSError):
                found = os.lstat(path / name)
                if self._folder.trust.believes_file(found):
                    fresh[key] = Entry(found.st_size, found.st_mtime_ns)
                else:
                    strangers.append(path / name)
        self._strangers.pop(number, None)
        if strangers:
            self._strangers[number] = strangers
        self._apply([bytes.fromhex(name) for name in known - names], fresh)

    def unfinished(self) -> list[Path]:
        """Files seen that somebody was about to write, and may have died over."""
        unfinished, self._unfinished = self._unfinished, []
        return unfinished

    def _apply(self, gone: list[bytes], fresh: dict[bytes, Entry]) -> None:
        for key in gone:
            self.discard(key)
        for key, entry in fresh.items():
            self._latest = max(self._latest, entry.used)
            self.add(key, entry.size, entry.used)

    def _keep_to_the_clock(self, now: int) -> None:
        """Dates ahead of the clock would keep blocks for ever: they mean now, in their order."""
        if self._latest > now + _STEP_NS:
            with self._lock:
                ahead = [(e.used, k) for fan in self._fans for k, e in fan.items() if e.used > now]
                for place, (_, key) in enumerate(sorted(ahead, reverse=True)):
                    self._fans[key[0]][key].used = self._mended[key] = now - place
                self._rebuild()
        self._latest = now

"""The bound of a cache folder: how much is in it, and what goes to make room."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from typing import Final

from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_ledger import UNKNOWN, Ledger

AUDIT: Final = 60.0
"""Seconds after which the total is measured again: files may have come and gone by hand."""
_MEASURED: Final = 5.0
"""Seconds in which measuring again would tell nothing new."""
_HOLD: Final = 0.02
"""Seconds that the lock is held for evicting; then others have their turn."""
_PAUSE: Final = 0.005
_PORTION: Final = 256


class Room:
    """Keeps the ledger's total right and the folder within ``max_bytes``.

    Methods that take a ledger are called with the folder's lock held, and change it.
    """

    def __init__(
        self, folder: CacheFolder, index: Index, max_bytes: int, counts: Counter[str]
    ) -> None:
        self._folder = folder
        self._index = index
        self._max_bytes = max_bytes
        self._counts = counts
        self._measured = float("-inf")

    def audit(self) -> None:
        """Measure what is there, and remove what dead processes left."""
        self._index.refresh()  # what takes long, before anybody has to wait for it
        with self._folder.lock() as fd:
            ledger = Ledger.read(fd)
            self.remove_stale(ledger)
            self.measure(ledger)
            ledger.write(fd)

    def look_after(self, seconds: float) -> None:
        """Measure again where the last time is long ago, and keep to the bound, for so long.

        A folder that somebody is removing is left to them: the next write makes it again.
        """
        try:
            total = self._folder.read_ledger().total
        except FileNotFoundError:
            return
        if total == UNKNOWN or time.monotonic() - self._measured > AUDIT:
            self.audit()
        elif total > self._max_bytes:
            self.trim(seconds)

    def measure(self, ledger: Ledger) -> None:
        """Add up all files, in the order in which they move. A killed process or a cut of power
        leaves a total that is too high or old."""
        writing = sum(self._folder.sizes(self._folder.temporary).values())
        self._index.refresh()
        damaged = sum(self._folder.sizes(self._folder.quarantine).values())
        for path in self._index.unfinished():  # empty: they get their size in tmp
            self._folder.remove_empty(path)
        ledger.total = writing + self._index.bytes + damaged
        self._measured = time.monotonic()

    def remove_stale(self, ledger: Ledger) -> None:
        """Remove what dead processes were writing."""
        files, freed = self._folder.remove_stale()
        self._counts["stale_files"] += files
        ledger.grow(-freed)

    def make(self, ledger: Ledger, size: int, before: int | None) -> bool:
        """Make room for ``size`` bytes more: leftovers go first, then damaged files, then blocks.

        False if it cannot be, for all that is left was of use since ``before``. True if there
        may be room now: look again, with the lock released in between.
        """
        if ledger.total == UNKNOWN:
            self.measure(ledger)
        if self._excess(ledger, size) <= 0:
            return True
        self.remove_stale(ledger)
        if self._excess(ledger, size) > 0:
            damaged = self._folder.sizes(self._folder.quarantine)
            ledger.grow(-self._folder.remove(damaged))
        end = time.monotonic() + _HOLD
        while (need := self._excess(ledger, size)) > 0:
            victims, enough = self._index.victims(need, before, _PORTION)
            if enough:
                self._evict(ledger, victims, end)
            elif time.monotonic() - self._measured > _MEASURED:
                self.measure(ledger)
            else:
                return False
            if time.monotonic() > end:
                break
        return True

    def _excess(self, ledger: Ledger, size: int) -> int:
        return ledger.total + size - self._max_bytes

    def trim(self, seconds: float) -> None:
        """Keep to the bound, for at most so long; others have their turn meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._folder.lock() as fd:
                ledger = Ledger.read(fd)
                try:
                    done = not self.make(ledger, 0, None) or self._excess(ledger, 0) <= 0
                finally:
                    ledger.write(fd)
            if done:
                return
            time.sleep(_PAUSE)

    def is_full(self, size: int, before: int | None) -> bool:
        """True if ``size`` bytes more would cost what was of use since ``before``, as far as is
        known without the disk."""
        if before is None or self._index.bytes + size <= self._max_bytes:
            return False
        oldest = self._index.oldest()
        return oldest is None or self._index.used(oldest) >= before

    def _evict(self, ledger: Ledger, victims: list[bytes], end: float) -> None:
        for key in victims:
            ledger.grow(-self._remove(key))
            if time.monotonic() > end:
                return

    def _remove(self, key: bytes) -> int:
        """Remove a block, unless another worker has used it lately; the bytes that it gave."""
        path, size = self._folder.path(key), 0
        # Another user's file in a sticky folder is not ours to remove (PermissionError).
        gone = suppress(FileNotFoundError, NotADirectoryError, PermissionError)
        with gone, self._folder.opened(path.parent) as fd:
            found = os.stat(path.name, dir_fd=fd, follow_symlinks=False)
            if self._used_since(key, found.st_mtime_ns):
                return 0
            if self._folder.trust.believes_file(found):
                os.unlink(path.name, dir_fd=fd)
                size = found.st_size
        # Else it is in the quarantine now, was removed by hand, or is none of ours.
        self._index.discard(key)
        self._counts["evicted_blocks"] += bool(size)
        self._counts["evicted_bytes"] += size
        return size

    def _used_since(self, key: bytes, when: int) -> bool:
        """True if a file's time is later than we knew. A time to come says nothing."""
        return when <= time.time_ns() and self._index.use(key, when)

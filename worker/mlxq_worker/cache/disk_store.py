"""Blocks put into the folder, within its bounds. No threads here: the writer's thread calls it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from mlxq_schemas.quantities import shown_size
from mlxq_worker.cache.disk_folder import CacheFolder, sync_folder
from mlxq_worker.cache.disk_format import encode
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_ledger import HOUR, Ledger
from mlxq_worker.cache.disk_room import Room
from mlxq_worker.cache.disk_temporary import Occupied, Temporary, place
from mlxq_worker.cache.disk_trust import NotTrusted
from mlxq_worker.cache.host import HostBlock

log = logging.getLogger(__name__)

_PAUSE: Final = 0.005
"""Seconds without the lock, so that others have their turn."""
_START_TRIM: Final = 1.0
"""Seconds of evicting before a worker starts; the rest goes while it works."""


class Refusal(StrEnum):
    """Why a block is not written."""

    PRESENT = "present"  # it is there, or another worker is writing it
    OCCUPIED = "occupied"  # what is there is not ours
    COLDER = "colder"  # what would have to go is used more often
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
        self._started = False
        self._told_of_size = False
        self.index = Index(folder)
        self.counts: Counter[str] = Counter()
        self.room = Room(folder, self.index, max_bytes, self.counts)
        self.spent_until = 0.0
        """Until then (of the monotonic clock) the write budget allows nothing more."""

    def start(self) -> None:
        """Learn what is there; remove what dead processes left; keep to a smaller bound."""
        self.index.refresh()
        if strangers := self.index.strangers:
            log.warning(
                "cache folder %s: %d files are not believed, for other users have or may have "
                "written them (the first: %s): make them your own with chown and chmod 600, or "
                "remove them",
                self._folder.root,
                len(strangers),
                strangers[0],
            )
        self._folder.try_out()
        self.room.audit()
        self._started = True
        self.room.trim(_START_TRIM)

    def put(self, block: HostBlock, used_ns: int, before: int | None = None) -> Refusal | None:
        """Write a block that was last of use at ``used_ns``; None if it is there now.

        No block leaves for it that was of use since ``before`` (None: any may). Raises
        :class:`OSError` if the disk refuses; then no part of the block is left.
        """
        if not self._started:
            self.start()
        try:
            return self._put(block, used_ns, before)
        except FileNotFoundError:
            self._folder.prepare()  # somebody removed a folder
            return self._put(block, used_ns, before)

    def _put(self, block: HostBlock, used_ns: int, before: int | None) -> Refusal | None:
        parts = encode(block, self._layout)
        size = sum(len(part) for part in parts)
        reserved = self._reserve(block.key, size, before)
        if isinstance(reserved, Refusal):
            return reserved
        target = self._folder.path(block.key)
        try:
            reserved.fill(parts, used_ns)
            reserved.commit(self._folder, target)
        except Occupied:
            self._give_back(reserved, size)
            return Refusal.OCCUPIED
        except BaseException:
            self._give_back(reserved, size)
            raise
        self._unsynced.add(target.parent)
        self.index.add(block.key, size, used_ns)
        self.counts["written_blocks"] += 1
        self.counts["written_bytes"] += size
        return None

    def sync(self) -> None:
        """Write the names of new files to the disk itself. The files are there already, so that
        a power cut before this costs blocks, and never leaves half of one.
        """
        while self._unsynced:
            with suppress(FileNotFoundError, NotADirectoryError):
                sync_folder(self._unsynced.pop())

    def persist_uses(self, uses: Mapping[bytes, int]) -> None:
        """Let other workers and the next start know when blocks were of use (nanoseconds)."""
        for key, used in {**self.index.mended(), **uses}.items():
            with suppress(NotADirectoryError, NotTrusted):
                self._folder.used(key, used)

    def _reserve(self, key: bytes, size: int, before: int | None) -> Temporary | Refusal:
        while True:
            with self._folder.lock() as fd:
                ledger, now = Ledger.read(fd), time.time()
                try:
                    if obstacle := self._obstacle(ledger, key, size, now):
                        return obstacle
                    if not self.room.make(ledger, size, before):
                        return Refusal.TOO_LARGE if before is None else Refusal.COLDER
                    if ledger.total + size <= self._max_bytes:
                        return self._begin(ledger, fd, key, size, now)
                finally:
                    ledger.write(fd)
            time.sleep(_PAUSE)

    def _begin(self, ledger: Ledger, fd: int, key: bytes, size: int, now: float) -> Temporary:
        """Make a block's file, counted before it is there: a kill leaves a total too high."""
        ledger.charge(now, size)
        ledger.grow(size)
        ledger.write(fd)
        try:
            return Temporary.make(self._folder, key, size)
        except BaseException:
            ledger.charge(now, -size)
            ledger.grow(-size)
            raise

    def _obstacle(self, ledger: Ledger, key: bytes, size: int, now: float) -> Refusal | None:
        """What stands against a block but for want of room; with the lock held."""
        if size > self._max_bytes:
            self.warn_of_size(size)
            return Refusal.TOO_LARGE
        if self._budget and ledger.last_day(now) + size > self._budget:
            # Nothing more until the next hour, which forgets another.
            self.spent_until = time.monotonic() + HOUR - now % HOUR
            return Refusal.BUDGET
        path = self._folder.path(key)
        try:
            with self._folder.opened(path.parent) as fd:
                found = place(path.name, fd)
        except (NotADirectoryError, NotTrusted):
            return Refusal.OCCUPIED
        if found is not None:
            ours = self._folder.trust.believes_file(found)
            return Refusal.PRESENT if ours else Refusal.OCCUPIED
        return Refusal.PRESENT if self._is_coming(ledger, key) else None

    def warn_of_size(self, size: int) -> None:
        """Once: a folder without room for one block of this model holds next to nothing."""
        if not self._told_of_size:
            self._told_of_size = True
            log.warning(
                "cache folder %s: a block of %s does not fit into it; give it more than %s with "
                "--cache-dir-bytes",
                self._folder.root,
                shown_size(size),
                shown_size(self._max_bytes),
            )

    def _is_coming(self, ledger: Ledger, key: bytes) -> bool:
        """True if a living process is writing this block; what a dead one left is removed."""
        name = key.hex()
        if not any(path.name.startswith(name) for path in self._writing()):
            return False
        self.room.remove_stale(ledger)
        return any(path.name.startswith(name) for path in self._writing())

    def _writing(self) -> list[Path]:
        return list(self._folder.sizes(self._folder.temporary))

    def _give_back(self, reserved: Temporary, size: int) -> None:
        """Leave nothing of a file that could not be written, and do not count it."""
        with suppress(OSError):
            reserved.drop()
            with self._folder.lock() as fd:
                ledger = Ledger.read(fd)
                ledger.grow(-size)
                ledger.write(fd)

"""What waits to be written to the cache folder, and the thread that does it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

from mlxq_worker.cache.disk_admission import Admission
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_store import DiskStore, Refusal
from mlxq_worker.cache.host import HostBlock

log = logging.getLogger(__name__)

TICK: Final = 1.0
"""Seconds: other workers' writes are seen so often."""
_TENDING: Final = 50
"""Looking at a large folder may take longer: then this many times as long passes in between."""
_PERSIST: Final = 10.0
"""Seconds: uses are stored so often."""
_HELD: Final = 10.0
"""Seconds without writing after the lock was held by another for too long."""
_TRIM: Final = 0.2
"""Seconds of evicting at a time, where the folder is larger than it may be."""


class Writer:
    """Takes blocks from any thread, without waiting for the disk; one thread writes them.

    ``counts``: what was refused and why, and errors.
    """

    def __init__(
        self,
        folder: CacheFolder,
        store: DiskStore,
        *,
        max_bytes: int,
        queue_bytes: int,
        admit_at: int,
        retry_after: float,
    ) -> None:
        self._folder = folder
        self._store = store
        self._index = store.index
        self._max_bytes = max_bytes
        self._queue_bytes = queue_bytes
        self._retry_after = retry_after
        self._ram_only_until = 0.0
        self._broken = False
        self._closing = False
        self._deadline = float("inf")
        self._tend_at = time.monotonic()
        self._persisted = time.monotonic()
        self._typical_bytes = 0
        self._waiting_bytes = 0
        self._waiting: OrderedDict[bytes, tuple[HostBlock, int]] = OrderedDict()
        self._uses: dict[bytes, int] = {}
        self._admission = Admission(admit_at, time.time_ns())
        self._changed = threading.Condition()
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._write, name="cache-write", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def wants(self, key: bytes, *, shared: bool = False) -> bool:
        """Count a sighting of a block; True if a host copy of it should be offered now.

        ``shared``: it is known to be of use to others, so that one sighting is enough.
        """
        if self._index.size(key):
            return False
        with self._changed:
            if not self._admission.see(key, time.time_ns(), shared=shared):
                return False
            return self._obstacle(key, self._typical_bytes) is None

    def offer(self, block: HostBlock) -> bool:
        """Let a block be written soon; False if it will not be. Its bytes must not change."""
        with self._changed:
            self._typical_bytes = block.nbytes
            obstacle = self._obstacle(block.key, block.nbytes)
            if obstacle:
                self.counts[f"refused_{obstacle}"] += 1
                if obstacle is Refusal.TOO_LARGE:
                    self._store.warn_of_size(block.nbytes)
                return False
            self._waiting[block.key] = (block, time.time_ns())
            self._waiting_bytes += block.nbytes
            self._changed.notify()
            return True

    def touch(self, keys: Sequence[bytes]) -> None:
        """Blocks are of use now: a chain, of which the last is the first to go."""
        now = time.time_ns()
        with self._changed:
            for place, key in enumerate(keys):
                if key in self._waiting:
                    self._waiting[key] = (self._waiting[key][0], now - place)
                elif self._index.use(key, now - place):
                    self._uses[key] = now - place

    def stats(self) -> dict[str, int]:
        """What waits, whether nothing is written for now, and the counters."""
        with self._changed:
            return {
                "waiting_bytes": self._waiting_bytes,
                "ram_only": int(time.monotonic() < self._ram_only_until),
                **self.counts,
            }

    def close(self, end: float) -> None:
        """Begin to end, at ``end`` (of the monotonic clock) whatever waits then."""
        with self._changed:
            self._closing = True
            self._deadline = min(self._deadline, end)
            self._changed.notify()

    def join(self, timeout: float) -> bool:
        """True if the thread ended within ``timeout`` seconds, and nothing waits any more."""
        self._thread.join(timeout)
        with self._changed:
            return not self._waiting and not self._thread.is_alive()

    def _obstacle(self, key: bytes, nbytes: int) -> Refusal | None:
        """Why a block cannot be taken now, as far as can be said without the disk."""
        if self._closing or time.monotonic() < self._ram_only_until:
            return Refusal.RAM_ONLY
        if key in self._waiting or self._index.size(key):
            return Refusal.PRESENT
        if time.monotonic() < self._store.spent_until:
            return Refusal.BUDGET
        if nbytes > self._max_bytes:
            return Refusal.TOO_LARGE
        if self._waiting_bytes + nbytes > self._queue_bytes:
            return Refusal.QUEUE
        if self._store.room.is_full(self._waiting_bytes + nbytes, self._admission.before(key)):
            return Refusal.COLDER
        return None

    def _write(self) -> None:
        """The writer's thread."""
        while True:
            block, used = self._next() or (None, 0)
            if block is not None:
                self._put(block, used)
                self._done(block.key, used)
            if time.monotonic() > self._tend_at:
                self._tend()
            with self._changed:
                if self._closing and (not self._waiting or time.monotonic() > self._deadline):
                    break
        self._persist()

    def _next(self) -> tuple[HostBlock, int] | None:
        """The block that waits longest; it stays in the queue while it is written."""
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(TICK)
            if not self._waiting or time.monotonic() > self._deadline:
                return None
            return next(iter(self._waiting.values()))

    def _done(self, key: bytes, used: int) -> None:
        with self._changed:
            if key not in self._waiting:
                return
            block, latest = self._waiting.pop(key)
            self._waiting_bytes -= block.nbytes
            if latest > used and self._index.use(key, latest):
                self._uses[key] = latest

    def _put(self, block: HostBlock, used: int) -> None:
        with self._changed:
            before = self._admission.before(block.key)
        try:
            refusal = self._store.put(block, used, before)
        except OSError as error:
            self.give_up(error)
            return
        except Exception:
            log.exception("cache block %s cannot be written", block.key.hex())
            self.counts["write_errors"] += 1
            return
        if refusal:
            self.counts[f"refused_{refusal}"] += 1
            return
        with self._changed:
            self._admission.written(block.key)
        if self._broken:
            self._broken = False
            log.info("cache folder %s takes writes again", self._folder.root)

    def give_up(self, error: OSError) -> None:
        """Keep to memory for a while. One warning, until the disk has taken something again."""
        pause = self._retry_after
        if isinstance(error, TimeoutError):
            pause = min(pause, _HELD)
        if not self._broken:
            log.warning(
                "cache folder %s: %s: going on without writing there, next try in %g s",
                self._folder.root,
                error.strerror or error,
                pause,
            )
        with self._changed:
            self._broken = True
            self.counts["write_errors"] += 1
            self._ram_only_until = time.monotonic() + pause
            self.counts[f"refused_{Refusal.RAM_ONLY}"] += len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0

    def _tend(self) -> None:
        began = time.monotonic()
        try:
            self._store.sync()
            self._index.refresh()
            self._tend_at = began + max(TICK, _TENDING * (time.monotonic() - began))
            if began > self._ram_only_until:
                self._store.room.look_after(_TRIM)
        except OSError as error:
            self._tend_at = began + TICK
            self.give_up(error)
        if began - self._persisted > _PERSIST:
            self._persist()

    def _persist(self) -> None:
        """Store what was done and used since the last time."""
        self._persisted = time.monotonic()
        with self._changed:
            uses, self._uses = self._uses, {}
        try:
            self._store.sync()
            self._store.persist_uses(uses)
        except OSError as error:
            self.give_up(error)

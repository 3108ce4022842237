"""The SSD tier: blocks of cache state that outlive the process, shared by workers on one machine.

A file is named by its block's key and never changes; it is there whole or not at all. What cannot
be written is left out, and what cannot be read is a miss: nothing here ever fails a job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk_admission import Admission
from mlxq_worker.cache.disk_care import Report, clear, verify
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_reader import Readers
from mlxq_worker.cache.disk_store import DiskStore, Refusal
from mlxq_worker.cache.disk_trust import NotTrusted, open_parent
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


class DiskTier:
    """Blocks on disk. Every method may be called from any thread; but for ``verify``, ``clear``
    and ``close`` none waits for the disk.

    ``max_bytes`` bounds the whole folder, whoever writes to it. ``layout`` names the meaning of
    the arrays: a file of another layout is a miss. ``write_budget``: most bytes written in 24
    hours by all workers on the folder, over restarts (0: no limit). ``admit_at``: a block is
    wanted from so many sightings on. ``queue_bytes``: most bytes that may wait to be written.
    ``retry_after``: seconds without writing after the disk has refused. ``readers``: threads.
    ``shared``: files of other users are believed, and the group may write. ``lock_seconds``: the
    longest wait for another process that holds the lock.

    Raises :class:`ConfigError` for a folder that cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        layout: str,
        write_budget: int = 0,
        admit_at: int = 2,
        queue_bytes: int = 256 << 20,
        retry_after: float = 300.0,
        readers: int = 2,
        shared: bool = False,
        lock_seconds: float | None = None,
    ) -> None:
        if max_bytes <= 0 or write_budget < 0:
            raise ConfigError(
                f"cache folder {folder}: {max_bytes} bytes, {write_budget} a day: give a size "
                "above 0 and a write budget of 0 (no limit) or more"
            )
        self._folder = CacheFolder(folder, shared=shared, lock_seconds=lock_seconds)
        self._store = DiskStore(
            self._folder, max_bytes=max_bytes, layout=layout, write_budget=write_budget
        )
        self._index = self._store.index
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
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._start()
        self._readers = Readers(self._folder, self._index, layout=layout, threads=readers)
        self._writer = threading.Thread(target=self._write, name="cache-write", daemon=True)
        self._writer.start()

    def _start(self) -> None:
        """Raises :class:`ConfigError`. A lock that is held is no reason: that may pass."""
        root = self._folder.root
        try:
            self._folder.prepare()
            if parent := open_parent(root):
                log.warning(
                    "cache folder %s: anybody may put another folder in its place, for %s may be "
                    "written by all and has no sticky bit: chmod +t it",
                    root,
                    parent,
                )
            self._store.start()
        except TimeoutError as error:
            self._give_up(error)
        except NotTrusted as error:
            raise ConfigError(f"cache folder {root}: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"cache folder {root}: {error.strerror or error}: give a folder on a local "
                "disk that this user may write to, or run without one"
            ) from error

    def has(self, key: bytes) -> bool:
        """True if the block is on disk, as far as is known: other workers' changes take a second
        or so to be seen."""
        return self._index.size(key) > 0

    def size(self, key: bytes) -> int:
        """Bytes that loading the block takes in memory, 0 if it is not on disk: reserve them
        first."""
        return self._index.size(key)

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
                self._counts[f"refused_{obstacle}"] += 1
                return False
            self._waiting[block.key] = (block, time.time_ns())
            self._waiting_bytes += block.nbytes
            self._changed.notify()
            return True

    def load(self, keys: Sequence[bytes]) -> Future[list[HostBlock]]:
        """Read the longest run of whole blocks from the front of ``keys``; counts as their use.

        The future never holds an error; it may be cancelled. The arrays are read-only.
        """
        self.touch(keys)
        return self._readers.load(keys)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Blocks are of use now: a chain, first to last, of which the last is the first to go.

        Call it after each look at a chain with ``wants``, and after its offers: these alone would
        let its first block go first.
        """
        now = time.time_ns()
        with self._changed:
            for place, key in enumerate(keys):
                if key in self._waiting:
                    self._waiting[key] = (self._waiting[key][0], now - place)
                elif self._index.use(key, now - place):
                    self._uses[key] = now - place

    def stats(self) -> dict[str, int | float]:
        """Counters since the start; ``blocks`` and ``bytes`` of the folder, ``waiting_bytes``,
        ``ram_only`` (0 or 1)."""
        with self._changed:
            return {
                "blocks": self._index.count,
                "bytes": self._index.bytes,
                "max_bytes": self._max_bytes,
                "waiting_bytes": self._waiting_bytes,
                "ram_only": int(time.monotonic() < self._ram_only_until),
                **dict.fromkeys(_COUNTERS, 0),
                **self._counts,
                **self._store.counts,
                **self._readers.counts,
            }

    def distrust(self, key: bytes, reason: str) -> None:
        """A block was read whole, but the model cannot take it up: it counts as damaged."""
        self._readers.distrust(key, reason)

    def verify(self) -> Report:
        """Read every file of the folder; damaged ones go to the quarantine. Takes its time."""
        report = verify(self._folder)
        for kind, number in report.damaged.items():
            self._readers.count(kind, number)
        return report

    def clear(self) -> int:
        """Remove every block of the folder, other workers' too; how many these were."""
        return clear(self._folder)

    def close(self, timeout: float = 5.0) -> bool:
        """Write what waits, for at most ``timeout`` seconds; True if all of it was written."""
        end = time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._deadline = min(self._deadline, end)
            self._changed.notify()
        self._readers.close()
        self._writer.join(timeout + TICK)  # a write that has begun may end
        self._readers.join(max(0.0, end - time.monotonic()) + TICK)
        with self._changed:
            return not self._waiting and not self._writer.is_alive()

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
            self._give_up(error)
            return
        except Exception:
            log.exception("cache block %s cannot be written", block.key.hex())
            self._counts["write_errors"] += 1
            return
        if refusal:
            self._counts[f"refused_{refusal}"] += 1
            return
        with self._changed:
            self._admission.written(block.key)
        if self._broken:
            self._broken = False
            log.info("cache folder %s takes writes again", self._folder.root)

    def _give_up(self, error: OSError) -> None:
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
            self._counts["write_errors"] += 1
            self._ram_only_until = time.monotonic() + pause
            self._counts[f"refused_{Refusal.RAM_ONLY}"] += len(self._waiting)
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
            self._give_up(error)
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
            self._give_up(error)


_COUNTERS: Final = (
    *("hits", "misses", "read_bytes", "read_errors", "corrupt", "foreign", "future"),
    *("written_blocks", "written_bytes", "write_errors", "evicted_blocks", "evicted_bytes"),
    *("stale_files", *(f"refused_{reason}" for reason in Refusal)),
)

"""The SSD tier: blocks of cache state that outlive the process, shared by workers on one machine.

A file is named by its block's key and never changes; it is there whole or not at all. What cannot
be written is left out, and what cannot be read is a miss: nothing here ever fails a job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk_care import Report, clear, verify
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_reader import Readers
from mlxq_worker.cache.disk_store import DiskStore, Refusal
from mlxq_worker.cache.disk_trust import NotTrusted, open_parent
from mlxq_worker.cache.disk_writer import TICK, Writer
from mlxq_worker.cache.host import HostBlock

log = logging.getLogger(__name__)


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
        self._writer = Writer(
            self._folder,
            self._store,
            max_bytes=max_bytes,
            queue_bytes=queue_bytes,
            admit_at=admit_at,
            retry_after=retry_after,
        )
        self._start()
        self._readers = Readers(self._folder, self._index, layout=layout, threads=readers)
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
            self._writer.give_up(error)
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
        return self._writer.wants(key, shared=shared)

    def offer(self, block: HostBlock) -> bool:
        """Let a block be written soon; False if it will not be. Its bytes must not change."""
        return self._writer.offer(block)

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
        self._writer.touch(keys)

    def stats(self) -> dict[str, int | float]:
        """Counters since the start; ``blocks`` and ``bytes`` of the folder, ``waiting_bytes``,
        ``ram_only`` (0 or 1)."""
        return {
            "blocks": self._index.count,
            "bytes": self._index.bytes,
            "max_bytes": self._max_bytes,
            **dict.fromkeys(_COUNTERS, 0),
            **self._writer.stats(),
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
        self._writer.close(end)
        self._readers.close()
        written = self._writer.join(timeout + TICK)  # a write that has begun may end
        self._readers.join(max(0.0, end - time.monotonic()) + TICK)
        return written


_COUNTERS: Final = (
    *("hits", "misses", "read_bytes", "read_errors", "corrupt", "foreign", "future"),
    *("written_blocks", "written_bytes", "write_errors", "evicted_blocks", "evicted_bytes"),
    *("stale_files", *(f"refused_{reason}" for reason in Refusal)),
)

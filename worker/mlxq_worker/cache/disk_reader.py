"""Reading blocks back, in threads of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_format import Damage, Damaged, Space, read
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_trust import NotTrusted
from mlxq_worker.cache.host import HostBlock

log = logging.getLogger(__name__)

_Load = tuple[Sequence[bytes], "Future[list[HostBlock]]"]


class Readers:
    """Threads that read; what turns out not to be there is taken from ``index``."""

    def __init__(self, folder: CacheFolder, index: Index, *, layout: str, threads: int) -> None:
        self._folder = folder
        self._layout = layout
        self._index = index
        self._loads: queue.SimpleQueue[_Load | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._work, name=f"cache-read-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def load(self, keys: Sequence[bytes]) -> Future[list[HostBlock]]:
        """The longest run of whole blocks from the front of ``keys``; never an error."""
        future: Future[list[HostBlock]] = Future()
        with self._lock:
            if self._closed:
                future.set_result([])
            else:
                self._loads.put((tuple(keys), future))
        return future

    def close(self) -> None:
        """Begin to end: loads that no thread has begun give nothing."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._loads.put(None)

    def join(self, timeout: float) -> bool:
        """True if all threads ended within ``timeout`` seconds."""
        for thread in self._threads:
            thread.join(timeout / len(self._threads))
        return not any(thread.is_alive() for thread in self._threads)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter, from any thread."""
        with self._lock:
            self.counts[name] += number

    def _work(self) -> None:
        while (load := self._loads.get()) is not None:
            keys, future = load
            if future.set_running_or_notify_cancel():
                future.set_result([] if self._closed else self._run(keys))

    def _run(self, keys: Sequence[bytes]) -> list[HostBlock]:
        run: list[HostBlock] = []
        space = Space(sum(self._index.size(key) for key in keys) + 64 * len(keys))
        for key in keys:
            block = None if self._closed else self._block(key, space)
            if block is None:
                break
            run.append(block)
        self.count("hits", len(run))
        self.count("misses", len(keys) - len(run))
        self.count("read_bytes", sum(block.nbytes for block in run))
        return run

    def _block(self, key: bytes, space: Space) -> HostBlock | None:
        path = self._folder.path(key)
        try:
            with self._folder.opened(path.parent) as fd:
                stored = read(path, space, self._folder.trust, folder_fd=fd)
            if stored.layout == self._layout and stored.block.key == key:
                return stored.block
            raise Damaged(Damage.FOREIGN, f"layout {stored.layout!r}, {stored.block.key.hex()}")
        except FileNotFoundError:
            pass  # another worker has evicted it
        except Damaged as error:
            self._quarantine(key, error)
        except NotTrusted as error:
            self.count("foreign")
            log.warning("a file in the cache folder is not believed: %s", error)
        except (OSError, MemoryError) as error:
            self.count("read_errors")
            log.warning("cannot read cache file %s: %s", path, error)
        self._index.discard(key)
        return None

    def distrust(self, key: bytes, reason: str) -> None:
        """Put a block away whose bytes are whole, but of no use to the model."""
        if self._index.size(key):
            self._quarantine(key, Damaged(Damage.CORRUPT, reason))
            self._index.discard(key)

    def _quarantine(self, key: bytes, error: Damaged) -> None:
        path = self._folder.path(key)
        self.count(error.kind)
        log.warning("cache file %s is put into quarantine: %s", path, error)
        try:
            self._folder.put_away(path, error.kind)
        except OSError as failure:
            log.warning("cannot move cache file %s: %s", path, failure)

"""Measure writing into a folder that holds many blocks already.

``python -m mlxq_worker.cache.bench --present 100000``
"""

from __future__ import annotations

import os
import statistics
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_format import encode
from mlxq_worker.cache.disk_index import Index
from mlxq_worker.cache.disk_store import DiskStore
from mlxq_worker.cache.host import HostArray, HostBlock

LAYOUT = "bench"
_LOOKS = 10


@dataclass(frozen=True)
class PutFigure:
    """What a writer's thread does, with ``present`` blocks in the folder.

    Processor milliseconds a block: ``put`` with room, ``put_evicting`` without. ``look``:
    processor milliseconds to see what has changed after 100 puts (at most once a second, and
    less often where it takes long). ``start``: seconds. ``index``: bytes of memory a block.
    """

    present: int
    block_bytes: int
    put: float
    put_evicting: float
    look: float
    start: float
    index: float


def measure_put(folder: Path, present: int, block_bytes: int, puts: int) -> PutFigure:
    """Fill ``folder`` with blocks, then put ``puts`` more with and without room."""
    rng = np.random.default_rng(0)
    place = CacheFolder(folder)
    place.prepare()
    size = 0
    for _ in range(present):
        block = _block(rng, block_bytes)
        raw = b"".join(encode(block, LAYOUT))
        size = len(raw)
        path = place.path(block.key)
        path.write_bytes(raw)
        path.chmod(0o600)
    tracemalloc.start()
    Index(place).refresh()
    index = Index(place)
    before = tracemalloc.get_traced_memory()[0]
    index.refresh()
    memory = (tracemalloc.get_traced_memory()[0] - before) / max(1, index.count)
    tracemalloc.stop()
    del index

    began = time.perf_counter()
    store = _store(place, 1 << 50)
    start = time.perf_counter() - began
    put = _put(store, rng, block_bytes, puts)
    looks: list[float] = []
    for _ in range(_LOOKS):
        _put(store, rng, block_bytes, 100)
        cpu = time.thread_time()
        store.index.refresh()
        looks.append(1e3 * (time.thread_time() - cpu))
    evicting = _put(_store(place, store.index.bytes), rng, block_bytes, puts)
    return PutFigure(present, size, put, evicting, statistics.median(looks), start, memory)


def _store(folder: CacheFolder, max_bytes: int) -> DiskStore:
    store = DiskStore(folder, max_bytes=max_bytes, layout=LAYOUT, write_budget=0)
    store.start()
    return store


def _put(store: DiskStore, rng: np.random.Generator, block_bytes: int, puts: int) -> float:
    """The median of processor milliseconds, each with its share of what is synced afterwards."""
    times: list[float] = []
    for _ in range(puts):
        block = _block(rng, block_bytes)
        cpu = time.thread_time()
        refusal = store.put(block, time.time_ns())
        times.append(1e3 * (time.thread_time() - cpu))
        if refusal:
            raise RuntimeError(f"a block was refused: {refusal}")
    cpu = time.thread_time()
    store.sync()
    return statistics.mean(times) + 1e3 * (time.thread_time() - cpu) / puts


def _block(rng: np.random.Generator, block_bytes: int) -> HostBlock:
    data = np.frombuffer(os.urandom(block_bytes), np.uint8)
    return HostBlock(rng.bytes(32), (HostArray("uint8", (block_bytes,), data),))

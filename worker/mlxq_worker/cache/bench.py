"""Measure the SSD tier: ``python -m mlxq_worker.cache.bench``.

Restoring blocks beside a plain read of the same files, in turn in one run, medians shown: once
with the files in the system's page cache, and, where it can be emptied, once from the disk. With
``--present``, writing among many blocks.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from mlxq_schemas.plain import to_json
from mlxq_worker.cache.bench_put import PutFigure, measure_put
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.host import HostArray, HostBlock

LAYOUT = "bench"


@dataclass(frozen=True)
class Figure:
    """One line: medians over rounds, in MB/s.

    ``ratio``: time to restore by time to read; ``cpu_ratio``: the same of processor time, which
    other processes on the machine change less.
    """

    source: str
    blocks: int
    block_bytes: int
    write: float
    read: float
    restore: float
    ratio: float
    cpu_ratio: float


class _Seconds(NamedTuple):
    wall: float
    cpu: float


def measure(folder: Path, blocks: int, block_bytes: int, rounds: int) -> list[Figure]:
    """Write blocks to ``folder``, then read and restore them ``rounds`` times from each source."""
    total = blocks * block_bytes
    tier = DiskTier(folder, max_bytes=4 * total, layout=LAYOUT, queue_bytes=2 * total)
    try:
        keys, seconds = _write(tier, blocks, block_bytes)
        paths = [CacheFolder(folder).path(key) for key in keys]
        figures: list[Figure] = []
        for source in ("page cache", *(["disk"] if hasattr(os, "posix_fadvise") else [])):
            pairs = [_round(tier, keys, paths, source) for _ in range(rounds + 1)][1:]
            middle = statistics.median
            read, restore = middle(a.wall for a, _ in pairs), middle(b.wall for _, b in pairs)
            rates = (total / 1e6 / seconds, total / 1e6 / read, total / 1e6 / restore)
            ratio = middle(b.wall / a.wall for a, b in pairs)
            cpu_ratio = middle(b.cpu / a.cpu for a, b in pairs)
            figures.append(Figure(source, blocks, block_bytes, *rates, ratio, cpu_ratio))
        return figures
    finally:
        tier.close()


def _write(tier: DiskTier, blocks: int, block_bytes: int) -> tuple[list[bytes], float]:
    rng = np.random.default_rng(0)
    made = [
        HostBlock(rng.bytes(32), (HostArray("uint8", (block_bytes,), _random(rng, block_bytes)),))
        for _ in range(blocks)
    ]
    start = time.perf_counter()
    for block in made:
        if not tier.offer(block):
            raise RuntimeError(f"a block was refused: {tier.stats()}")
    while tier.stats()["waiting_bytes"]:
        time.sleep(0.001)
    if tier.stats()["written_blocks"] != blocks:
        raise RuntimeError(f"a block was not written: {tier.stats()}")
    return [block.key for block in made], time.perf_counter() - start


def _random(rng: np.random.Generator, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(rng.bytes(size), np.uint8)


def _round(
    tier: DiskTier, keys: Sequence[bytes], paths: Sequence[Path], source: str
) -> tuple[_Seconds, _Seconds]:
    """To read, and to restore."""

    def restore() -> None:
        if len(tier.load(keys).result()) != len(keys):
            raise RuntimeError(f"a block was not restored: {tier.stats()}")

    return (
        _timed(lambda: [path.read_bytes() for path in paths], paths, source),
        _timed(restore, paths, source),
    )


def _timed(work: Callable[[], object], paths: Sequence[Path], source: str) -> _Seconds:
    if source == "disk":
        for path in paths:
            _forget(path)
    start = _Seconds(time.perf_counter(), time.process_time())
    work()
    return _Seconds(time.perf_counter() - start.wall, time.process_time() - start.cpu)


def _forget(path: Path) -> None:
    """Let the system drop a file from its page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _say(one: PutFigure) -> str:
    return (
        f"among {one.present} blocks of {one.block_bytes} bytes: put {one.put:.2f} ms of processor "
        f"time, {one.put_evicting:.2f} ms where another has to go; a look at what 100 puts changed "
        f"{one.look:.1f} ms; start {one.start:.2f} s; index {one.index:.0f} bytes a block"
    )


def bench(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where to write. [default: a temporary folder]")
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks written and read.")] = 64,
    block_bytes: Annotated[int, typer.Option(min=1, help="Bytes of each.")] = 4 << 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds after one to warm up.")] = 9,
    present: Annotated[
        int, typer.Option(min=0, help="Instead, write among so many blocks that are there.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Restore blocks beside a plain read of the same files, or write among many others."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="mlxq-cache-bench-") as place:
        if present:
            one = measure_put(Path(place) / "cache", present, block_bytes, 20 * rounds)
            typer.echo(to_json(asdict(one)) if as_json else _say(one))
            return
        figures = measure(Path(place) / "cache", blocks, block_bytes, rounds)
    for one in figures:
        if as_json:
            typer.echo(to_json(asdict(one)))
        else:
            typer.echo(
                f"{one.source}: {one.blocks} blocks of {one.block_bytes} bytes: restore "
                f"{one.restore:.0f} MB/s, plain read {one.read:.0f} MB/s, "
                f"time {one.ratio:.2f} x, processor {one.cpu_ratio:.2f} x; "
                f"written at {one.write:.0f} MB/s"
            )


if __name__ == "__main__":
    typer.run(bench)

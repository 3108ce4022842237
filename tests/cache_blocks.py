"""Blocks whose content follows from a number, and looks at cache folders from outside."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.disk_format import encode
from mlxq_worker.cache.host import HostArray, HostBlock

LAYOUT = "test"


def key_for(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def make_block(number: int, size: int = 1000) -> HostBlock:
    """A block of three arrays and about ``size`` bytes; its meta says how to make it again."""
    rng = np.random.default_rng(number)
    halves = HostArray.copy_of(rng.integers(0, 1 << 16, (2, size // 4), np.uint16), "bfloat16")
    empty = HostArray("float16", (0, 3), np.empty(0, np.uint8))
    scalar = HostArray.copy_of(rng.random((), np.float32))
    return HostBlock(key_for(number), (halves, empty, scalar), f"{number} {size}".encode())


ONE = sum(len(part) for part in encode(make_block(0), LAYOUT))
"""Bytes of a block's file, for numbers of one digit."""


def numbers(tier: DiskTier, limit: int = 30) -> list[int]:
    """Blocks that are on disk, as far as a tier knows."""
    return [number for number in range(limit) if tier.has(key_for(number))]


def same(one: HostBlock, other: HostBlock) -> bool:
    def content(block: HostBlock) -> object:
        arrays = [(a.dtype, a.shape, a.data.tobytes()) for a in block.arrays]
        return block.key, block.meta, arrays

    return content(one) == content(other)


def is_as_made(block: HostBlock) -> bool:
    """True if a block from anywhere has the content that its number gives."""
    number, size = map(int, block.meta.split())
    return same(block, make_block(number, size))


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Fails if ``condition`` is not true within a time that only a hang needs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def write(tier: DiskTier, *blocks: HostBlock) -> None:
    """Offer blocks and wait until each is written or refused."""
    for block in blocks:
        assert tier.offer(block)
    wait_until(lambda: not tier.stats()["waiting_bytes"])


def load(tier: DiskTier, *numbers: int) -> list[HostBlock]:
    return tier.load([key_for(number) for number in numbers]).result(60)


def file_bytes(folder: CacheFolder) -> int:
    """Bytes of all files, at one moment: the lock keeps out all but moves between folders."""
    with folder.lock():
        found: dict[int, int] = {}
        for place in (folder.temporary, *folder.fans, folder.quarantine):
            for path in sorted(place.iterdir()):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                found[stat.st_ino] = stat.st_size
    return sum(found.values())


def file_of(root: Path, number: int) -> Path:
    return CacheFolder(root).path(key_for(number))


def harm(root: Path, rng: random.Random) -> bool:
    """Flip a bit of any file in a cache folder, or cut the file. False if it went meanwhile."""
    ledger = root / "ledger"
    files = sorted(path for path in root.rglob("*") if path.is_file() and path != ledger)
    path = ledger if not files or rng.random() < 0.2 else rng.choice(files)
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            place = rng.randrange(size) if size else 0
            if rng.random() < 0.3:
                file.truncate(place)
            elif size:
                file.seek(place)
                [byte] = file.read(1) or b"\0"
                file.seek(place)
                file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    except FileNotFoundError:
        return False
    return True


TESTS = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}


def program(name: str, root: Path, *values: int | str) -> list[str]:
    """A command that runs one of ``cache_programs``."""
    arguments = [name, str(root), *map(str, values)]
    return [sys.executable, "-W", "error", "-m", "cache_programs", *arguments]


def outcome(command: list[str], **options: Any) -> dict[str, Any]:
    """What such a command printed."""
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

"""Programs that use a cache folder and are killed, run side by side, or meet a full disk.

``python -m cache_programs NAME FOLDER ...`` prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cache_blocks import (
    LAYOUT,
    file_bytes,
    harm,
    is_as_made,
    key_for,
    load,
    make_block,
    wait_until,
    write,
)
from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import CacheFolder, key_of
from mlxq_worker.cache.disk_ledger import UNKNOWN

CAP = 1 << 20


def killed(root: Path, trials: int, seed: int) -> dict[str, int]:
    """Kill a writer ``trials`` times; the folder must be right each time, before and after."""
    rng = random.Random(seed)
    folder = CacheFolder(root)
    kept = stale = written = 0
    for trial in range(trials):
        ready, tell = os.pipe()
        pid = os.fork()
        if not pid:
            _write_for_ever(root, tell, random.Random(seed + trial), trial)
        os.close(tell)
        if trial % 4:  # the others may be killed while they start
            os.read(ready, 1)
        time.sleep(rng.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        found = _check(folder)
        kept, stale, written = kept + found[0], stale + found[1], written + found[2]
    return {"trials": trials, "loaded": kept, "stale": stale, "fresh": written}


def halted(root: Path, call: str, trials: int, seed: int) -> dict[str, int]:
    """Kill a writer ``trials`` times, each time right behind a system call of the name ``call`` in
    its writer's thread, before anything else is done."""
    folder = CacheFolder(root)
    halts = kept = 0
    for trial in range(trials):
        ready, tell = os.pipe()
        pid = os.fork()
        if not pid:
            _halt_after(call, 1 + (seed + trial) % 4, tell)
            _write_for_ever(root, -1, random.Random(seed + trial), trial)
        os.close(tell)
        halts += len(os.read(ready, 1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        kept += _check(folder)[0]
    return {"halts": halts, "loaded": kept}


def _halt_after(call: str, times: int, tell: int) -> None:
    """Let threads that begin later stand still behind a system call."""
    left = times

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal left
        if event != "c_return" or function is not getattr(os, call):
            return
        left -= 1
        if left == 0:
            os.write(tell, b".")
            time.sleep(3600)

    threading.setprofile(watch)


def damaged(root: Path, trials: int, seed: int) -> dict[str, int]:
    """Damage files of all kinds under a tier that writes, reads and evicts, and start again."""
    rng = random.Random(seed)
    folder = CacheFolder(root)
    options: dict[str, Any] = {"max_bytes": CAP, "layout": LAYOUT, "write_budget": 1 << 40}
    tier = DiskTier(root, **options)
    harmed, found, number = 0, 0, 0
    for trial in range(trials):
        for _ in range(3):
            number += 1
            tier.offer(make_block(number, rng.randrange(100, 120_000)))
        if trial % 2:  # the others may meet a file that is being written
            _settle(tier)
        harmed += harm(root, rng)
        for wanted in range(max(1, number - 30), number + 1):
            for block in load(tier, wanted):
                assert block.key == key_for(wanted)
                assert is_as_made(block), wanted
                found += 1
        assert file_bytes(folder) <= CAP
        if trial % 20 == 19:
            assert tier.close(60)
            tier = DiskTier(root, **options)
    _settle(tier)
    tier.offer(make_block(0))
    _settle(tier)
    assert is_as_made(load(tier, 0)[0])
    tier.verify()
    assert tier.verify().clean
    assert tier.close(60)
    return {"harmed": harmed, "loaded": found}


def _settle(tier: DiskTier) -> None:
    wait_until(lambda: not tier.stats()["waiting_bytes"])


def _write_for_ever(root: Path, tell: int, rng: random.Random, trial: int) -> None:
    tier = DiskTier(root, max_bytes=CAP, layout=LAYOUT, queue_bytes=CAP)
    if tell >= 0:
        os.write(tell, b".")
    number = trial * 100_000
    while True:
        number += 1
        tier.offer(make_block(number, rng.randrange(100, 120_000)))
        tier.load([key_for(number - rng.randrange(20))])
        time.sleep(0.001)


def _check(folder: CacheFolder) -> tuple[int, int, int]:
    before = file_bytes(folder) if folder.ledger.exists() else 0
    assert before <= CAP, f"{before} bytes after the kill"
    if before:
        total = folder.read_ledger().total
        assert total == UNKNOWN or before <= total <= CAP, f"{total} counted, {before} there"
    tier = DiskTier(folder.root, max_bytes=CAP, layout=LAYOUT)
    try:
        assert not list(folder.temporary.iterdir()), "leftovers after a start"
        assert folder.read_ledger().total == file_bytes(folder)
        report = tier.verify()
        assert report.clean, report
        assert not report.strangers, report
        keys = [key_of(path.name) or b"" for fan in folder.fans for path in fan.iterdir()]
        blocks = tier.load(keys).result(60)
        assert len(blocks) == len(keys) == report.blocks
        assert all(map(is_as_made, blocks))
        stats = tier.stats()
        assert not stats["corrupt"]
        return len(blocks), int(stats["stale_files"]), int(stats["blocks"])
    finally:
        tier.close()


def shared(root: Path, turns: int, seed: int) -> dict[str, Any]:
    """Write, read and evict beside another process that does the same with the same keys."""
    rng = random.Random(seed)
    tier = DiskTier(root, max_bytes=CAP, layout=LAYOUT, admit_at=1)
    ours: set[int] = set()
    others = 0
    for _ in range(turns):
        number = rng.randrange(60)
        if tier.wants(key_for(number)) and tier.offer(make_block(number, 20_000 + 900 * number)):
            ours.add(number)
            wait_until(lambda: not tier.stats()["waiting_bytes"])
        for wanted in rng.sample(range(60), 3):
            for block in load(tier, wanted):
                assert is_as_made(block), wanted
                others += wanted not in ours
    assert tier.close(60)
    return {**tier.stats(), "others": others}


def full(root: Path, limit: int) -> dict[str, Any]:
    """Write until the disk refuses, then on, then make room. ``limit``: bytes a file may have,
    0 for a disk that is small itself."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.levelname)  # type: ignore[method-assign]
    logging.getLogger("mlxq_worker").addHandler(handler)
    logging.getLogger("mlxq_worker").setLevel(logging.INFO)
    tier = DiskTier(root, max_bytes=1 << 30, layout=LAYOUT, retry_after=0.5)
    assert tier.offer(make_block(0))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    size, number = 300_000, 0
    while tier.stats()["write_errors"] < 3:  # tried again, and refused again
        number += 1
        tier.offer(make_block(number, size))
        time.sleep(0.005)
    warned = list(lines)
    refused = tier.offer(make_block(10**6))
    leftovers = len(list(CacheFolder(root).temporary.iterdir()))
    kept = [n for n in range(number + 1) if load(tier, n)]
    read = all(is_as_made(block) for n in kept for block in load(tier, n))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    else:
        tier.clear()
    wait_until(lambda: tier.offer(make_block(10**6, size)))
    wait_until(lambda: tier.has(key_for(10**6)))
    assert tier.close(60)
    stats = tier.stats()
    return {
        "warned": warned,
        "refused": not refused,
        "leftovers": leftovers,
        "kept": kept,
        "read": read,
        "lines": lines,
        "stats": stats,
    }


def user(
    root: Path, uid: int, gid: int, shared: int, number: int = 0, cap: int = CAP
) -> dict[str, Any]:
    """Write a block as one user of several; what can be read then, from block 0 on."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    try:
        tier = DiskTier(root, max_bytes=cap, layout=LAYOUT, shared=bool(shared))
    except ConfigError as error:
        return {"error": error.message}
    write(tier, make_block(number))
    loaded = [n for n in range(8) for block in load(tier, n) if is_as_made(block)]
    assert tier.close(60)
    stats = tier.stats()
    return {
        "written": stats["written_blocks"],
        "evicted": stats["evicted_blocks"],
        "errors": stats["write_errors"],
        "loaded": loaded,
    }


PROGRAMS: Any = {one.__name__: one for one in (killed, halted, damaged, shared, full, user)}


def main(name: str, root: str, *arguments: str) -> None:
    values = [int(value) if value.isdigit() else value for value in arguments]
    print(json.dumps(PROGRAMS[name](Path(root), *values)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The bound without looking at every file: a total that is kept, measured again, and mended."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from cache_blocks import ONE, file_bytes, file_of, key_for, make_block, numbers, wait_until, write
from mlxq_worker.cache import disk_room
from mlxq_worker.cache.disk_folder import CacheFolder, Temporary
from mlxq_worker.cache.disk_ledger import HOUR, UNKNOWN, Ledger


def total(folder: CacheFolder) -> int:
    return folder.read_ledger().total


def set_total(folder: CacheFolder, value: int) -> None:
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        ledger.total = value
        ledger.write(fd)


def test_the_total_is_what_is_there(tiers, folder):
    tier = tiers(max_bytes=5 * ONE)
    assert total(folder) == 0
    write(tier, *map(make_block, range(3)))
    assert total(folder) == file_bytes(folder) == 3 * ONE
    write(tier, *map(make_block, range(3, 9)))
    assert total(folder) == file_bytes(folder) == 5 * ONE
    tier.clear()
    assert total(folder) == file_bytes(folder) == 0


def test_a_put_looks_at_no_folder_but_its_own(tiers, folder, monkeypatch):
    tier = tiers(max_bytes=5 * ONE)
    looks: list[object] = []
    changed = CacheFolder.changed
    monkeypatch.setattr(CacheFolder, "changed", lambda *a: looks.append(a) or changed(*a))
    put = tier._store.put
    for number in range(9):
        looks.clear()
        with tier._store._folder.lock():  # no tending meanwhile
            pass
        assert put(make_block(number), time.time_ns()) is None
        assert len(looks) % 256 == 0  # by the thread that tends
    assert total(folder) == 5 * ONE


def test_a_total_that_is_too_low_is_mended(tiers, folder):
    """Files that came by hand, or a ledger from before a cut of power."""
    write(tiers(), *map(make_block, range(6)))
    set_total(folder, 0)
    tier = tiers(max_bytes=4 * ONE)
    assert total(folder) == file_bytes(folder) == 4 * ONE
    set_total(folder, ONE)
    tier._store.room._measured -= disk_room.AUDIT
    wait_until(lambda: total(folder) == 4 * ONE)


def test_a_total_that_is_too_high_costs_no_room(tiers, folder):
    tier = tiers(max_bytes=4 * ONE)
    write(tier, make_block(0))
    set_total(folder, 100 * ONE)
    tier._store.room._measured -= disk_room.AUDIT / 2
    write(tier, make_block(1))
    assert numbers(tier) == [0, 1]
    assert total(folder) == 2 * ONE


@pytest.mark.parametrize("raw", [b"", b"x" * 300, bytes(300)])
def test_a_ledger_that_says_nothing_means_measuring(tiers, folder, raw):
    tier = tiers(max_bytes=3 * ONE)
    write(tier, *map(make_block, range(3)))
    folder.ledger.write_bytes(raw)
    assert total(folder) == UNKNOWN
    write(tier, make_block(3))
    assert total(folder) == file_bytes(folder) == 3 * ONE


def test_what_a_killed_writer_left_is_taken_off(tiers, folder):
    tiers().close(60)
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        ledger.grow(1000)
        ledger.write(fd)
        left = Temporary.make(folder, key_for(0), 1000)
    os.close(left.fd)  # as the end of a process does
    empty = file_of(folder.root, 1).with_name(
        left.path.name.replace(key_for(0).hex(), key_for(1).hex())
    )
    empty.touch(mode=0o600)
    tier = tiers()
    assert total(folder) == file_bytes(folder) == 0
    assert not empty.exists()
    assert tier.verify().strangers == 0


def test_what_cannot_be_written_is_taken_off(tiers, folder, monkeypatch):
    tier = tiers(retry_after=0.01)
    write(tier, make_block(0))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Temporary, "fill", full)
        write(tier, make_block(1))
    assert total(folder) == file_bytes(folder) == ONE
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        wait_until(lambda: tier.offer(make_block(1)))
        wait_until(lambda: not tier.stats()["waiting_bytes"])
    assert total(folder) == file_bytes(folder) == ONE
    assert folder.read_ledger().last_day(time.time()) <= 2 * ONE


def test_a_smaller_bound_is_kept_while_others_go_on(tiers, folder, monkeypatch):
    """Evicting a large folder down leaves the lock to others in between."""
    write(tiers(), *map(make_block, range(200)))
    held: list[float] = []
    monkeypatch.setattr(disk_room, "_HOLD", 0.0)
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            with folder.lock():
                held.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        tier = tiers(max_bytes=5 * ONE)
        wait_until(lambda: file_bytes(folder) <= 5 * ONE)
    finally:
        stop.set()
        thread.join()
    assert len(held) > 10
    wait_until(lambda: tier.stats()["bytes"] <= 5 * ONE)


def test_the_whole_folder_may_be_copied(tiers, folder, tmp_path):
    write(tiers(), *map(make_block, range(3)))
    shutil.copytree(folder.root, tmp_path / "copy")
    assert numbers(tiers(folder=tmp_path / "copy")) == [0, 1, 2]


def test_a_ledger_of_a_clock_that_was_ahead_means_now(tiers, folder):
    tier = tiers(write_budget=3 * ONE)
    write(tier, *map(make_block, range(3)))
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        ledger.hour += 365 * 24
        ledger.write(fd)
    ledger = folder.read_ledger()
    now = time.time()
    assert ledger.last_day(now) == 3 * ONE
    assert ledger.last_day(now + 26 * HOUR) == 0
    write(tier, make_block(3))
    assert tier.stats()["refused_budget"] == 1
    assert folder.read_ledger().hour <= now // HOUR + 1

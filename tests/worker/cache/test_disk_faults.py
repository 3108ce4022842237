"""Wrong clocks, held locks, folders that go, and descriptors: none stops the tier for good."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cache_blocks import (
    LAYOUT,
    ONE,
    file_of,
    is_as_made,
    key_for,
    load,
    make_block,
    numbers,
    wait_until,
    write,
)
from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache import disk_temporary
from mlxq_worker.cache.cli import app
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import Temporary
from mlxq_worker.cache.disk_format import Space, read

YEAR = 365 * 24 * 3600
HOLD = (
    "import fcntl, sys, time; file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX);"
    "print(flush=True); time.sleep(600)"
)


def test_files_from_the_future_leave_like_others(tiers, folder):
    write(tiers(), *map(make_block, range(5)))
    later = time.time() + 3 * YEAR
    for number in (0, 1):
        os.utime(file_of(folder.root, number), (later + number, later + number))
    tier = tiers(max_bytes=5 * ONE)
    write(tier, make_block(5), make_block(6), make_block(7))
    assert numbers(tier) == [0, 1, 5, 6, 7]
    write(tier, make_block(8))
    assert numbers(tier) == [1, 5, 6, 7, 8]  # in their order
    assert tier.close(60)
    assert file_of(folder.root, 1).stat().st_mtime < time.time() + 1


def test_a_date_that_becomes_wrong_while_we_run_keeps_no_block(tiers, folder):
    tier = tiers(max_bytes=2 * ONE)
    write(tier, make_block(0), make_block(1))
    os.utime(file_of(folder.root, 0), (time.time() + YEAR,) * 2)
    write(tier, make_block(2), make_block(3))
    assert numbers(tier) == [2, 3]


def test_a_clock_that_is_set_back_keeps_the_order(tiers, monkeypatch):
    tier = tiers(max_bytes=4 * ONE)
    write(tier, *map(make_block, range(4)))
    tier.touch([key_for(0)])
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - YEAR * 10**9)
    tier._index.refresh()
    tier.touch([key_for(1)])
    write(tier, make_block(4), make_block(5))
    assert numbers(tier) == [0, 1, 4, 5]


def test_a_budget_that_is_spent_does_not_hang_on_the_clock(tiers, monkeypatch):
    tier = tiers(write_budget=ONE)
    write(tier, make_block(0), make_block(1))
    assert tier.stats()["refused_budget"] == 1
    assert not tier.offer(make_block(1))
    assert 0 < tier._store.spent_until - time.monotonic() <= 3600


@pytest.fixture
def held(folder):
    """Another process holds the lock; ended, it lets go."""
    command = [sys.executable, "-c", HOLD, str(folder.ledger)]

    def hold() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        started.append(process)
        return process

    started: list[subprocess.Popen[bytes]] = []
    yield hold
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def test_a_start_does_not_wait_for_ever_for_the_lock(tiers, folder, held, caplog):
    write(tiers(), make_block(0))
    holder = held()
    tier = tiers(lock_seconds=0.1, retry_after=0.3)
    assert str(folder.ledger) in caplog.text
    if Path("/proc/locks").exists():
        assert f"process {holder.pid}" in caplog.text
    assert is_as_made(load(tier, 0)[0])  # reading goes on
    assert not tier.offer(make_block(1))
    holder.kill()
    wait_until(lambda: tier.offer(make_block(1)))
    wait_until(lambda: numbers(tier) == [0, 1])


def test_a_lock_that_is_held_later_stops_writing_for_a_while(tiers, held, caplog):
    tier = tiers(lock_seconds=0.1, retry_after=0.3)
    write(tier, make_block(0))
    holder = held()
    write(tier, make_block(1))
    assert tier.stats()["write_errors"] >= 1
    assert "still locked by" in caplog.text
    holder.kill()
    wait_until(lambda: tier.offer(make_block(2)))
    wait_until(lambda: tier.has(key_for(2)))


@pytest.mark.parametrize("command", ["stats", "verify", "clear"])
def test_commands_do_not_wait_for_ever(tiers, folder, held, command, monkeypatch):
    write(tiers(), make_block(0))
    held()
    monkeypatch.setattr("mlxq_worker.cache.disk_folder.LOCK_SECONDS", 0.1)
    result = CliRunner().invoke(app, [command, "--dir", str(folder.root)])
    if command == "stats":
        assert result.exit_code == 0
    else:
        assert result.exit_code == 2
        assert "still locked by" in result.stderr


@pytest.mark.parametrize("place", ["tmp", "blocks", "quarantine", "", "ledger", "fan"])
def test_whatever_folder_goes_while_we_run_comes_again(tiers, folder, place):
    """At once: not after five minutes, and not only the first time."""
    tier = tiers()
    for number in (0, 1):
        write(tier, make_block(number))
        path = file_of(folder.root, 2).parent if place == "fan" else folder.root / place
        while path.exists():
            with suppress(OSError):  # what is put there meanwhile goes too
                path.unlink() if path.is_file() else shutil.rmtree(path)
    write(tier, make_block(2))
    assert is_as_made(load(tier, 2)[0])
    file_of(folder.root, 2).write_bytes(b"x" * 100)
    assert load(tier, 2) == []
    assert not file_of(folder.root, 2).exists()  # it is in the quarantine
    stats = tier.stats()
    assert (stats["write_errors"], stats["ram_only"], stats["corrupt"]) == (0, 0, 1)


def test_a_file_in_a_folders_place_stops_writing_until_it_is_gone(tiers, folder):
    tier = tiers(retry_after=0.05)
    write(tier, make_block(0))
    folder.temporary.rmdir()
    folder.temporary.write_text("mine")
    write(tier, make_block(1))
    assert tier.stats()["write_errors"] == 1
    folder.temporary.unlink()
    wait_until(lambda: tier.offer(make_block(2)))
    wait_until(lambda: tier.has(key_for(2)))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")


@linux
@pytest.mark.parametrize("failing", ["flock", "ftruncate", "fsync", "rename", "utime", "unlink"])
def test_no_descriptor_is_left_when_a_step_fails(tiers, folder, failing, monkeypatch):
    tier = tiers(retry_after=0.0)
    write(tier, make_block(0))
    assert tier.close(60)

    def fail(*_, **__):
        raise OSError(errno.ENOLCK, "no more of that")

    before = descriptors()
    monkeypatch.setattr(fcntl if failing == "flock" else os, failing, fail)
    if failing == "unlink":
        monkeypatch.setattr(Path, "unlink", fail)
        monkeypatch.setattr(os, "fsync", fail)
    for number in range(1, 6):
        with suppress(OSError):
            tier._store.put(make_block(number), 1)
        with suppress(OSError), folder.lock():
            Temporary.make(folder, key_for(number), 10).drop()
        with suppress(OSError):
            folder.try_out()
        with suppress(ConfigError):
            DiskTier(folder.root, max_bytes=1, layout=LAYOUT, readers=0).close(60)
    assert descriptors() == before


@linux
def test_no_descriptor_is_left_of_what_is_no_block(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short").write_bytes(b"x")
    before = descriptors()
    for name in ("", "pipe", "short", "missing"):
        for _ in range(3):
            with suppress(Exception):
                read(tmp_path / name, Space())
            with suppress(Exception):
                folder.check()
    assert descriptors() == before


def test_the_lock_is_given_back_whatever_happens(folder):
    folder.prepare()
    with pytest.raises(RuntimeError), folder.lock():
        raise RuntimeError
    with folder.lock():
        pass
    assert disk_temporary.is_temporary(f"{key_for(0).hex()}.12.{'a' * 16}")
    assert not disk_temporary.is_temporary(f"{key_for(0).hex()}.bak")

"""The SSD tier among processes: killed at any moment, side by side, and on a full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cache_blocks import ENVIRONMENT, file_bytes, outcome, program
from cache_programs import CAP
from mlxq_worker.cache.disk_care import verify
from mlxq_worker.cache.disk_folder import CacheFolder

SHORT = os.environ.get("MLXQ_TEST_SHORT") == "1"
SMALL_DISK = "mount -t tmpfs -o size=2m mlxq-test {0} && exec {1}"


def test_a_killed_writer_leaves_a_right_folder(tmp_path):
    found = outcome(program("killed", tmp_path / "cache", 20, 1))
    assert found["loaded"] > 0


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_200_killed_writers_leave_a_right_folder(tmp_path):
    found = outcome(program("killed", tmp_path / "cache", 40 if SHORT else 200, 2))
    assert found["loaded"] > 0
    assert found["stale"] > 0  # some were killed in the middle of a file


def test_10_writers_killed_in_mid_eviction_leave_a_right_folder(tmp_path):
    """Behind the removal of a block, before anything is noted of it."""
    assert outcome(program("halted", tmp_path / "cache", "unlink", 10, 3))["halts"] == 10


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "utime", "fsync", "rename"])
def test_writers_killed_behind_any_other_call_leave_a_right_folder(tmp_path, call):
    """The ledger charged; a file opened, filled, synced, moved."""
    assert outcome(program("halted", tmp_path / "cache", call, 4, 4))["halts"] == 4


def test_damage_to_any_file_is_a_miss_while_a_tier_works(tmp_path):
    found = outcome(program("damaged", tmp_path / "cache", 40, 5))
    assert found["harmed"] > 30
    assert found["loaded"] > 200


@pytest.mark.slow
@pytest.mark.chaos
def test_200_flips_and_cuts_are_misses(tmp_path):
    found = outcome(program("damaged", tmp_path / "cache", 210, 6))
    assert found["harmed"] >= 200
    assert found["loaded"] > 1000


def test_two_processes_share_a_folder_and_its_bound(tmp_path):
    root = tmp_path / "cache"
    commands = [program("shared", root, 120, seed) for seed in (1, 2)]
    running = [
        subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    folder = CacheFolder(root)
    most = 0
    while any(process.poll() is None for process in running):
        if folder.fans[-1].exists():
            most = max(most, file_bytes(folder))
    ends = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], ends
    stats = [json.loads(out) for out, _ in ends]
    assert CAP / 2 < most <= CAP
    for one in stats:
        assert one["evicted_blocks"] > 0
        assert one["others"] > 0  # blocks that the other process wrote
        assert one["write_errors"] == one["corrupt"] == one["read_errors"] == 0
    report = verify(folder)
    assert report.clean
    assert not list(folder.temporary.iterdir())


def check_full(found: dict[str, Any]) -> None:
    assert found["warned"] == ["WARNING"]
    assert found["lines"] == ["WARNING", "INFO"]  # takes writes again
    assert found["refused"]
    assert found["kept"][0] == 0
    assert found["read"]
    assert found["leftovers"] == 0
    assert found["stats"]["refused_ram_only"] > 0


def test_a_limit_of_the_system_means_memory_only_for_a_while(tmp_path):
    check_full(outcome(program("full", tmp_path / "cache", 200_000)))


def test_a_full_disk_means_memory_only_for_a_while(tmp_path):
    """On a real file system of two megabytes, in a mount namespace of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if not can_mount(place):
        pytest.skip("no right to mount a small disk here")
    shell = SMALL_DISK.format(place, " ".join(program("full", place / "cache", 0)))
    found = outcome(["unshare", "-rm", "sh", "-c", shell])
    check_full(found)
    assert len(found["kept"]) > 2  # it was full of blocks


def can_mount(place: Path) -> bool:
    if not shutil.which("unshare"):
        return False
    attempt = ["unshare", "-rm", "sh", "-c", SMALL_DISK.format(place, "true")]
    return subprocess.run(attempt, capture_output=True, check=False).returncode == 0

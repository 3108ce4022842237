"""``mlxq cache`` as users call it, and the measurement."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cache_blocks import LAYOUT, file_of, make_block, write
from mlxq_worker.cache import told
from mlxq_worker.cache.bench import measure
from mlxq_worker.cache.cli import app
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_care import Report
from mlxq_worker.cache.disk_format import Damage


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder with three blocks of one layout and one of another."""
    folder = tmp_path / "cache"
    for layout, numbers in ((LAYOUT, (0, 1, 2)), ("other", (3,))):
        tier = DiskTier(folder, max_bytes=1 << 30, layout=layout)
        write(tier, *map(make_block, numbers))
        assert tier.close(60)
    return folder


def call(*args: str) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_stats_say_what_is_there(root):
    found = json.loads(call("stats", "--dir", str(root), "--json").stdout)
    assert found["blocks"] == 4
    assert found["bytes"] == found["written_last_day"] > 4000
    assert found["oldest_use"] <= found["newest_use"]
    assert (found["writing_files"], found["quarantined_files"]) == (0, 0)
    said = call("stats", "--dir", str(root)).stdout
    assert re.search(r"^blocks: 4 \([\d.]+ KiB\)$", said, re.MULTILINE)
    assert re.search(r"^last used: \d+s ago \(the oldest block: \d+s ago\)$", said, re.MULTILINE)
    assert re.search(r"^written in the last day: [\d.]+ KiB$", said, re.MULTILINE)


def test_verify_finds_what_is_damaged_once(root):
    file_of(root, 0).write_bytes(b"x" * 100)
    result = call("verify", "--dir", str(root), "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (report["blocks"], report["damaged"], report["clean"]) == (3, {"corrupt": 1}, False)
    assert {name: one["blocks"] for name, one in report["layouts"].items()} == {
        LAYOUT: 2,
        "other": 1,
    }
    again = call("verify", "--dir", str(root))
    assert again.exit_code == 0
    assert again.stdout.startswith("whole: 3 blocks (")
    assert again.stdout.endswith("every block is whole\n")
    stats = json.loads(call("stats", "--dir", str(root), "--json").stdout)
    assert (stats["quarantined_files"], stats["quarantined_bytes"]) == (1, 100)


def test_people_read_what_is_damaged_in_words(root):
    file_of(root, 0).write_bytes(b"x" * 100)
    said = call("verify", "--dir", str(root)).stdout
    assert "damaged: 1 block, not what was written; moved to quarantine\n" in said
    assert not re.search(r"[<{}>]|False|None", said)
    assert "damaged, set aside: 1 file (100 bytes)" in call("stats", "--dir", str(root)).stdout
    assert call("clear", "--dir", str(root)).stdout == "removed: 3 blocks\n"


@pytest.mark.parametrize("kind", list(Damage))
def test_every_kind_of_damage_has_words(kind):
    report = Report(damaged=Counter({kind: 2}))
    [line] = [line for line in told.verified(report) if line.startswith("damaged")]
    assert line.startswith("damaged: 2 blocks, ")
    assert kind.value not in line


def test_a_folder_is_told_what_it_lacks(tmp_path):
    (tmp_path / "pics").mkdir()
    there = call("clear", "--dir", str(tmp_path / "pics")).stderr
    missing = call("clear", "--dir", str(tmp_path / "none")).stderr
    assert "this folder is something else" in there
    assert "nothing was touched" in there
    assert "there is no such folder" in missing


def test_clear_removes_all_blocks(root):
    file_of(root, 0).write_bytes(b"x")
    call("verify", "--dir", str(root))
    assert json.loads(call("clear", "--dir", str(root), "--json").stdout) == {"removed_blocks": 3}
    stats = json.loads(call("stats", "--dir", str(root), "--json").stdout)
    assert (stats["blocks"], stats["quarantined_files"]) == (0, 0)


@pytest.mark.parametrize("command", ["stats", "verify", "clear"])
def test_a_folder_that_is_no_cache_is_left_alone(tmp_path, command):
    (tmp_path / "ledger").write_text("household")
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "ledger"):
        result = call(command, "--dir", str(folder))
        assert result.exit_code == 2
        assert result.stderr.startswith("error[config]: no cache in ")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


def test_the_users_command_hands_everything_through(root):
    environment = {**os.environ, "MLXQ_CACHE_DIR": str(root)}
    command = [sys.executable, "-W", "error", "-m", "mlxq_producer", "cache", "stats", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["blocks"] == 4


def test_the_disk_tier_needs_no_mlx():
    code = "import sys, mlxq_worker.cache.disk, mlxq_worker.cache.cli; print('mlx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_measurement_measures(tmp_path):
    figures = measure(tmp_path / "cache", blocks=3, block_bytes=1000, rounds=2)
    assert figures[0].source == "page cache"
    for one in figures:
        assert min(one.write, one.read, one.restore, one.ratio) > 0

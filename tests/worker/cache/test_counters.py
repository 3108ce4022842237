"""What ``stats()`` counts, and that the measurement runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cache_session import BLUE, RED, Session, prepare, text
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.disk import DiskTier


def counts(session: Session, kind: str) -> dict[str, int]:
    stats = session.generator.stats()
    names = ("hits", "misses", "stored", "evicted", "promoted")
    return {name: stats[f"{kind}_{name}"] for name in names if stats[f"{kind}_{name}"]}


def test_blocks_are_counted_once_each(load, tmp_path):
    subject = load("qwen3_vl")
    prompt = prepare(subject, text(1), {"red": RED})
    short = prepare(subject, "Who?", {"red": RED})  # its first block is the picture's begin
    blocks = (len(prompt.ids) - 1) // BLOCK
    assert len(short.ids) < 2 * BLOCK < len(prompt.ids)

    session = Session(
        subject, disk=DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
    )
    session.ask(prompt)
    assert counts(session, "prefix") == {"misses": blocks, "stored": blocks}
    assert counts(session, "feature") == {"misses": 1, "stored": 1}
    session.ask(prompt)
    session.ask(short)
    assert counts(session, "prefix") == {"hits": blocks + 1, "misses": blocks, "stored": blocks}
    assert counts(session, "feature") == {"hits": 1, "misses": 1, "stored": 1}
    session.generator.close()
    stats = session.generator.stats()
    assert stats["disk_written_blocks"] == blocks + 1
    assert stats["prefix_stored_bytes"] == stats["prefix_bytes"]

    again = Session(subject, disk=DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT))
    again.ask(prompt)
    assert counts(again, "prefix") == {"hits": blocks, "stored": blocks, "promoted": blocks}
    stats = again.generator.stats()
    assert stats["prefix_promoted_bytes"] == stats["prefix_bytes"]
    assert stats["disk_hits"] >= blocks
    again.generator.close()


def test_what_leaves_memory_is_counted(load):
    subject = load("qwen3_vl")
    session = Session(subject, prefix_cache_bytes=20_000, feature_cache_bytes=20_000)
    for n, picture in enumerate((RED, BLUE, RED)):
        session.ask(prepare(subject, text(n), {str(n): picture}))
    stats = session.generator.stats()
    for kind, cap in (("prefix", 20_000), ("feature", 20_000)):
        assert 0 < stats[f"{kind}_bytes"] <= cap
        assert stats[f"{kind}_evicted"] > 0
        kept = stats[f"{kind}_stored_bytes"] - stats[f"{kind}_evicted_bytes"]
        assert kept == stats[f"{kind}_bytes"]


@pytest.mark.slow
def test_the_measurement_runs():
    command = [sys.executable, "-W", "error", "-m", "mlxq_worker.cache.measure", "--json"]
    sizes = ["--rounds", "1", "--jobs", "3", "--longest", "64"]
    done = subprocess.run(
        [*command, *sizes], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["repeat"]["vision_calls"] == 0
    assert 0 < found["storing"]["share"] < 1
    assert [one["tokens"] for one in found["restore"]] == [32, 64]
    assert found["crossover"] in {None, 32, 64}

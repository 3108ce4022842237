"""Sizes of 0 are off, on the SSD too; the SSD alone works; little memory wears no SSD in vain."""

from __future__ import annotations

from functools import partial

import pytest

from cache_blocks import wait_until
from cache_session import QUICK, RED, Session, block_bytes, ids, prepare, text
from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.config import WorkerConfig


@pytest.fixture
def start(start):
    """Blocks are written when they are seen twice, as by default."""
    return partial(start, admit_at=2)


def settled(session: Session) -> dict[str, int]:
    """Counters when all that was offered is written."""
    session.generator._recall._caches._disk.close(30)
    return session.generator.stats()


@pytest.mark.parametrize("off", ["prefix", "feature", "both"])
def test_a_size_of_0_is_off_on_disk_too(load, start, off):
    subject = load("qwen3_vl")
    kinds = ("prefix", "feature")
    sizes = {f"{kind}_cache_bytes": 0 for kind in kinds if off in {kind, "both"}}
    prompt = prepare(subject, text(1), {"red": RED})
    want = subject.alone([prompt], 10)
    for _ in range(2):
        session = start(subject, **sizes)
        for _ in range(3):
            assert session.ask(prompt) == want
        stats = settled(session)
        for kind in kinds:
            names = ("bytes", "blocks", "hits", "stored", "promoted")
            found = [stats[f"{kind}_{name}"] for name in names]
            assert any(found) == (f"{kind}_cache_bytes" not in sizes), kind
    if off == "both":
        assert stats["disk_written_bytes"] == stats["disk_read_bytes"] == stats["disk_blocks"] == 0
    else:
        assert stats["disk_read_bytes"] > 0
        expected = 1 if off == "prefix" else len(prompt.ids) // BLOCK
        assert stats["disk_blocks"] == expected


@pytest.mark.parametrize("name", QUICK)
def test_the_ssd_alone(load, start, name):
    subject = load(name)
    images = {"red": RED} if subject.shows else {}
    prompt = prepare(subject, text(1), images)
    want = subject.alone([prompt], 10)
    session = start(subject, ssd_only=True)
    for _ in range(2):
        assert session.ask(prompt) == want
    for options in ({"ssd_only": True}, {"ssd_only": True}, {}):
        session.generator.close()
        session = start(subject, **options)
        assert session.ask(prompt) == want
        assert session.cached >= len(prompt.ids) - 3 * BLOCK
        session.generator.next()
        stats = session.generator.stats()
        assert stats["images"] == 0
        held = stats["prefix_bytes"] + stats["feature_bytes"]
        assert (held == 0) == bool(options)
        assert stats["disk_written_bytes"] == 0, "written again"


def test_the_ssd_alone_needs_a_folder_and_room(tmp_path):
    with pytest.raises(ValueError, match="--cache-dir"):
        WorkerConfig(name="w", cache_ssd_only=True)
    WorkerConfig(name="w", cache_ssd_only=True, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="above 0"):
        DiskTier(tmp_path, max_bytes=0, layout=LAYOUT)


@pytest.mark.parametrize("ssd_only", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_what_memory_cannot_take_back_is_not_written(load, start, name, ssd_only):
    """Memory of 7 blocks for prompts of 20: the SSD holds what it can give, and gives all of it."""
    subject = load(name)
    cap = 7 * block_bytes(subject)
    prompts = [ids(seed, 20) for seed in range(5)]
    alone = subject.alone(prompts, 4)
    options = {"prefix_cache_bytes": cap, "ssd_only": ssd_only, "prefill_step": 2 * BLOCK}
    session = start(subject, **options)
    for turn in range(4):
        wait_until(lambda: not session.generator.stats()["disk_waiting_bytes"])
        for prompt, want in zip(prompts, alone, strict=True):
            assert session.ask(prompt, tokens=4) == [want]
            assert session.cached > 0 or turn < 2
            assert session.generator.stats()["prefix_bytes"] <= cap
    stats = settled(session)
    assert stats["disk_written_bytes"] <= 1.1 * 5 * cap
    assert stats["disk_read_bytes"] <= 1.1 * stats["prefix_hits"] * block_bytes(subject)


def test_pictures_larger_than_memory_are_not_written(load, start):
    subject = load("qwen3_vl")
    session = start(subject, prefix_cache_bytes=0, feature_cache_bytes=100)
    for _ in range(3):
        session.ask(prepare(subject, "Who?", {"red": RED}))
    assert settled(session)["disk_written_bytes"] == 0

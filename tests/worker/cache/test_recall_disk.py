"""Prefixes and pictures that outlive the process: a restart between turns changes no text."""

from __future__ import annotations

import random
from functools import partial

import pytest

from cache_session import BLUE, EVERY_FAMILY, RED, Session, prepare, text
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def subject(request, load):
    """Every family, in float32."""
    return load(request.param)


@pytest.fixture
def session(subject, tmp_path):
    """Starts sessions one after the other on one folder, as a worker that restarts."""
    running: list[Session] = []

    def start(**options) -> Session:
        stop()
        disk = DiskTier(tmp_path / "cache", max_bytes=1 << 28, layout=LAYOUT, **options)
        running.append(Session(subject, disk=disk, identity="m"))
        return running[-1]

    def stop() -> None:
        for one in running:
            one.generator.close()
        running.clear()

    yield start
    stop()


def test_a_restart_between_turns_changes_no_text(subject, session):
    first, second = text(1), text(2)
    prompts = [
        prepare(subject, first, {"red": RED}),
        prepare(subject, first, {"blue": BLUE}),
        prepare(subject, f"{first} {second}", {"red": RED}),
        prepare(subject, first, {}),
    ]
    alone = subject.alone(prompts, 10)
    before = session(admit_at=1)
    assert before.ask(*prompts) == alone
    after = session()
    for prompt, want in zip(prompts, alone, strict=True):
        assert after.ask(prompt) == [want]
    stats = after.generator.stats()
    assert stats["vision_calls"] == 0
    assert stats["cached_tokens"] > sum(len(prompt.ids) for prompt in prompts) // 2
    assert after.ask(*prompts) == alone


def test_damaged_files_change_no_text(load, tmp_path):
    subject = load("qwen3_vl")
    prompt = prepare(subject, text(3), {"red": RED})
    want = subject.alone([prompt], 10)
    rng = random.Random(0)
    for trial in range(12):
        folder = tmp_path / str(trial)
        for damaged in (False, True):
            disk = DiskTier(folder, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
            session = Session(subject, disk=disk)
            assert session.ask(prompt) == want
            session.generator.close()
            files = [file for file in folder.rglob("*") if file.is_file()]
            for file in files if not damaged else []:
                data = bytearray(file.read_bytes())
                if data and rng.random() < 0.5:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                    file.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])


def test_another_identity_shares_nothing(load, tmp_path):
    subject = load("qwen3")
    prompt = prepare(subject, text(4), {})
    for identity, cached in (("a", False), ("b", False), ("a", True)):
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk, identity=identity)
        session.ask(prompt)
        assert (session.cached > 0) == cached
        session.generator.close()


def test_bfloat16_stays_bfloat16(load, tmp_path):
    subject = load("qwen3", "bfloat16")
    prompt = prepare(subject, text(4), {})
    said = []
    for _ in range(2):
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk)
        said.append(session.ask(prompt))
        session.generator.close()
    assert said[0] == said[1]
    assert session.cached > 0


@pytest.mark.parametrize("what", ["library_versions", "LAYOUT"])
def test_blocks_of_another_version_are_not_found(load, tmp_path, monkeypatch, what):
    """No damage either: they leave by age."""
    subject = load("qwen3_vl")
    prompt = prepare(subject, text(5), {"red": RED})
    want = subject.alone([prompt], 10)
    counts = []
    for version in ("one", "one", "two"):
        another = version if what == "LAYOUT" else partial(str, version)
        monkeypatch.setattr(f"mlxq_worker.cache.caches.{what}", another)
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk)
        assert session.ask(prompt) == want
        session.generator.close()
        stats = session.generator.stats()
        assert stats["disk_corrupt"] == stats["disk_foreign"] == 0
        counts.append((session.cached > 0, stats["images"]))
    assert counts == [(False, 1), (True, 0), (False, 1)]

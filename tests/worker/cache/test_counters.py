"""What ``stats()`` counts, and that the measurement runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cache_session import BLUE, RED, Session, prepare, text
from mlxq_schemas import Sampling
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.engine import Request
from mlxq_worker.models.prepared import Prepared


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


def ask_twice(subject, after: int = 0, *, kept: bool = True) -> Session:
    """Two prompts whose beginnings are known. At decode step ``after`` a step of both fails, and
    they start again; unless ``kept``, the caches have lost all by then.
    """
    session = Session(subject)
    begins = [text(seed, 60) for seed in (1, 2)]
    session.ask(*(prepare(subject, begin, {}) for begin in begins))
    generator = session.generator
    decode, steps = generator._adapter.decode, 0

    def fails_once(*arguments):
        nonlocal steps
        steps += len(arguments[0]) == 2
        if steps == after:
            steps += 1
            if not kept:
                generator._recall.make_room(1 << 40)
            raise RuntimeError("a broken step")
        return decode(*arguments)

    generator._adapter.decode = fails_once if after else decode
    session.ask(*(prepare(subject, f"{begin} {text(3, 40)}", {}) for begin in begins))
    assert generator.stats()["restarted"] == (2 if after else 0)
    return session


@pytest.mark.parametrize("after", [1, 6])
def test_a_row_that_starts_again_counts_what_was_never_computed_for_it(load, after):
    subject = load("llama")
    usual, again = ask_twice(subject), ask_twice(subject, after)
    assert min(usual.cached_tokens) >= BLOCK
    assert again.cached_tokens == usual.cached_tokens
    assert (again.generator.stats()["repeated_tokens"] > 0) == (after > 2)
    lost = ask_twice(subject, after, kept=False)
    assert lost.cached_tokens == [0, 0]
    computed = lost.generator.stats()["prompt_tokens"] - usual.generator.stats()["prompt_tokens"]
    assert computed > 2 * 100


def test_prompt_tokens_are_computed_or_cached(load):
    subject = load("llama")
    session = Session(subject)
    prompts = [prepare(subject, text(seed, 40), {}) for seed in (1, 2, 1)]
    for prompt in (*prompts, Prepared([37])):
        session.ask(prompt)
    stats = session.generator.stats()
    asked = sum(len(prompt.ids) for prompt in prompts) + 1
    assert stats["cached_tokens"] > 0
    assert stats["prompt_tokens"] + stats["cached_tokens"] == asked
    assert stats["repeated_tokens"] == 0


@pytest.mark.parametrize("cached", [True, False])
def test_tokens_of_earlier_attempts_are_not_of_the_prompt(load, cached):
    subject = load("llama")
    options = {} if cached else {"prefix_cache_bytes": 0}
    session = Session(subject, **options)
    prompt = prepare(subject, text(1, 20), {})
    [tokens] = session.ask(prompt, tokens=60)
    before = session.generator.stats()
    request = Request(
        "again", prepared=prompt, sampling=Sampling(max_tokens=60), prior_ids=tokens[:50]
    )
    session.generator.insert([request])
    responses = []
    while session.generator.has_work():
        responses += session.generator.next()
    usage = responses[-1].usage
    assert usage is not None
    assert [response.token for response in responses] == tokens[50:]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt.ids), 60)
    stats = session.generator.stats()
    taken = stats["cached_tokens"] - before["cached_tokens"]
    assert usage.cached_tokens == taken <= len(prompt.ids)
    assert (taken > 0) == cached
    computed = stats["prompt_tokens"] - before["prompt_tokens"]
    assert computed + taken == len(prompt.ids)
    assert stats["repeated_tokens"] == 49  # and the last one is fed by the first decode step


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

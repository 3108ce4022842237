"""What comes from the SSD: read once for all rows, into room set aside, while others go on."""

from __future__ import annotations

import pytest

from cache_blocks import wait_until
from cache_session import (
    QUICK,
    RED,
    block_bytes,
    drain,
    ids,
    prepare,
    request,
    reserved,
    slow,
    text,
)
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.engine import generator as generator_module
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.prepared import Prepared


def branches(front: Prepared, count: int) -> list[Prepared]:
    """Prompts with one front, and ends of their own."""
    return [Prepared([*front.ids, *range(400 + n, 440 + n)]) for n in range(count)]


@pytest.mark.parametrize("options", [{}, {"ssd_only": True}], ids=["memory", "ssd only"])
@pytest.mark.parametrize("name", QUICK)
def test_rows_that_wait_share_one_read(load, start, name, options):
    subject = load(name)
    front = ids(1, 8)
    prompts = branches(front, 16)
    start(subject).ask(front, tokens=1)
    session = start(subject, admit_at=2, **options)
    assert session.ask(*prompts, tokens=4) == subject.alone(prompts, 4)
    assert min(session.cached_tokens) >= 7 * BLOCK
    stats = session.generator.stats()
    once = stats["prefix_promoted_bytes"]
    assert stats["disk_read_bytes"] <= 1.1 * once
    assert stats["prefix_promoted"] <= 8 + 1
    assert stats["disk_hits"] == stats["prefix_promoted"]
    session.generator.next()
    assert reserved(session) == 0
    assert (session.generator.stats()["prefix_bytes"] == 0) == bool(options)


def test_a_longer_prompt_reads_only_what_the_others_do_not(load, start):
    subject = load("llama")
    long = ids(1, 12)
    short = Prepared(long.ids[: 6 * BLOCK + 3])
    start(subject).ask(long, tokens=1)
    session = start(subject)
    prompts = [short, long, short]
    assert session.ask(*prompts) == subject.alone(prompts, 10)
    assert session.cached_tokens == [6 * BLOCK, 12 * BLOCK, 6 * BLOCK]
    assert session.generator.stats()["disk_hits"] == 12


def test_what_arrives_stays_until_its_rows_have_begun(load, start):
    """Memory for one prompt and a half; four of them wait, and other rows store meanwhile."""
    subject = load("llama")
    prompts = [ids(seed, 10) for seed in range(4)]
    start(subject).ask(*prompts, tokens=1)
    cap = 15 * block_bytes(subject)
    session = start(subject, prefix_cache_bytes=cap, prefill_step=64)
    strangers = [ids(100 + seed, 9) for seed in range(4)]
    mixed = [one for pair in zip(prompts, strangers, strict=True) for one in pair]
    assert session.ask(*mixed, tokens=4) == subject.alone(mixed, 4)
    stats = session.generator.stats()
    taken = stats["prefix_hits"] * block_bytes(subject)
    assert stats["prefix_hits"] >= 10
    assert stats["disk_read_bytes"] <= 1.1 * taken
    assert stats["prefix_bytes"] <= cap


def test_memory_never_holds_more_than_it_may(load, start):
    subject = load("llama")
    prompts = [ids(seed, 10) for seed in range(8)]
    start(subject).ask(*prompts, tokens=1)
    cap = 24 * block_bytes(subject)
    for options in ({}, {"ssd_only": True}):
        session = start(subject, prefix_cache_bytes=cap, max_rows=3, **options)
        session.generator.insert([request(str(n), one) for n, one in enumerate(prompts)])
        most = 0
        while session.generator.has_work():
            session.generator.next()
            most = max(most, session.generator.stats()["prefix_bytes"])
        assert 0 < most <= cap
        stats = session.generator.stats()
        assert stats["disk_read_bytes"] <= 1.1 * stats["prefix_hits"] * block_bytes(subject)


def test_a_waiting_row_finds_its_blocks_there_when_its_turn_comes(load, start):
    """They come while another row decodes, which never waits for them."""
    subject = load("llama")
    coming = ids(1, 10)
    start(subject).ask(coming, tokens=1)
    session = start(subject, admit_at=2, max_rows=1)
    generator = session.generator
    with slow(session) as go:
        generator.insert([request("now", ids(2, 2), tokens=40), request("next", coming)])
        for _ in range(20):
            generator.next()
        stats = generator.stats()
        assert stats["generated_tokens"] > 10, "the row that decodes waits for the SSD"
        assert reserved(session) >= 10 * block_bytes(subject)
        assert (stats["decoding"], stats["queued"]) == (1, 1)
        go.set()
        [load_] = generator._waiting.peek().known.loads
        wait_until(load_.future.done)
    # From now on the SSD would give nothing in time.
    with slow(session):
        said = drain(session)
        assert said["next"] == subject.alone([coming], 4)[0]
        stats = generator.stats()
        assert stats["cached_tokens"] == 10 * BLOCK
        assert stats["disk_hits"] == 10
    generator.next()
    assert reserved(session) == 0


def test_rows_in_prefill_do_not_hold_up_those_that_decode(load, start):
    subject = load("llama")
    coming = ids(1, 10)
    start(subject).ask(coming, tokens=1)
    session = start(subject, max_rows=2)
    with slow(session) as go:
        session.generator.insert([request("now", ids(2, 2), tokens=40), request("next", coming)])
        for _ in range(20):
            session.generator.next()
        stats = session.generator.stats()
        assert (stats["decoding"], stats["prefilling"]) == (1, 1)
        assert stats["generated_tokens"] > 10
        go.set()
        assert drain(session)["next"] == subject.alone([coming], 4)[0]


@pytest.mark.parametrize("way", ["abort", "remove", "outranked"])
def test_a_job_that_leaves_gives_its_room_back(load, start, way):
    subject = load("llama")
    coming = ids(1, 10)
    start(subject).ask(coming, tokens=1)
    session = start(subject, max_rows=1)
    generator = session.generator
    with slow(session):
        [_, uid] = generator.insert([request("now", ids(2, 2), 60), request("next", coming)])
        for _ in range(3):
            generator.next()
        assert reserved(session) > 0
        if way == "abort":
            generator.abort("next")
        elif way == "remove":
            generator.remove([uid])
        else:
            generator.insert([request("first", ids(3, 1), priority=9)])
        generator.next()
        assert reserved(session) == 0
    drain(session)


def test_the_last_row_removed_while_nothing_runs_gives_its_room_back(load, start):
    subject = load("llama")
    coming = ids(1, 10)
    start(subject).ask(coming, tokens=1)
    session = start(subject)
    with slow(session):
        [uid] = session.generator.insert([request("only", coming)])
        session.generator.next()
        assert reserved(session) > 0
        session.generator.remove([uid])
        assert session.generator.next() == []
        assert reserved(session) == 0


def test_ahead_takes_no_more_than_half_and_nothing_that_is_of_use(load, start):
    subject = load("llama")
    coming = [ids(seed, 8) for seed in range(6)]
    start(subject).ask(*coming, tokens=1)
    cap = 40 * block_bytes(subject)
    session = start(subject, admit_at=99, max_rows=1, prefix_cache_bytes=cap)
    often = ids(50, 24)
    for _ in range(3):
        session.ask(often, tokens=1)
    with slow(session) as go:
        names = [request(str(n), one) for n, one in enumerate(coming)]
        session.generator.insert([request("now", ids(2, 1), 60), *names])
        for _ in range(10):
            session.generator.next()
        assert 0 < reserved(session) <= cap // 2
        assert session.generator.stats()["prefix_bytes"] <= cap
        go.set()
        drain(session)
    session.ask(often, tokens=1)
    # Rows whose turn has come may take a little: blocks are larger on disk than in memory.
    assert session.cached >= 22 * BLOCK


def test_what_a_waiting_row_needs_of_memory_is_not_what_goes_for_another(load, start):
    subject = load("llama")
    coming = ids(1, 8)
    start(subject).ask(coming, tokens=1)
    session = start(subject, admit_at=99, max_rows=1, prefix_cache_bytes=20 * block_bytes(subject))
    old, newer = ids(2, 8), ids(3, 10)
    for prompt in (old, newer):
        session.ask(prompt, tokens=1)
    assert session.ask(ids(4, 0), old, coming, tokens=40)
    assert session.cached_tokens == [0, 8 * BLOCK, 8 * BLOCK]


def test_rows_that_are_sent_back_take_up_again(load, start, monkeypatch):
    """Under a limit on bytes of rows, what comes from the SSD gives way to rows too. No growth is
    promised here, as if it were used up."""
    monkeypatch.setattr(generator_module, "GROWTH", 0)
    subject = load("llama")
    prompts = [ids(seed, 7) for seed in range(5)]
    start(subject).ask(*prompts, tokens=1)
    limit = 40 * block_bytes(subject)
    session = start(subject, max_cache_bytes=limit, max_rows=4, prefill_step=64)
    generator = session.generator
    generator.insert([request(str(n), one, 60) for n, one in enumerate(prompts)])
    said: dict[str, list[int]] = {}
    while generator.has_work():
        for response in generator.next():
            assert response.error is None
            if response.token is not None:
                said.setdefault(response.request_id, []).append(response.token)
        stats = generator.stats()
        if stats["decoding"] + stats["prefilling"] > 1:
            assert stats["cache_bytes"] + stats["prefix_bytes"] <= limit
    assert list(map(said.get, "01234")) == subject.alone(prompts, 60)
    assert generator.stats()["preempted"] > 0
    generator.next()
    assert reserved(session) == 0


def test_a_device_that_fails_while_blocks_come_changes_no_text(load, start):
    subject = load("llama")
    prompts = [ids(seed, 6) for seed in range(4)]
    start(subject).ask(*prompts, tokens=1)
    session = start(subject, max_rows=2)
    generator = session.generator
    decode, steps = generator._adapter.decode, 0

    def fails(*arguments):
        nonlocal steps
        steps += 1
        if steps in {2, 5}:
            raise RuntimeError("[METAL] Command buffer execution failed: planted")
        return decode(*arguments)

    generator._adapter.decode = fails
    generator.insert([request(str(n), one, 10) for n, one in enumerate(prompts)])
    said = drain(session)
    assert list(map(said.get, "0123")) == subject.alone(prompts, 10)
    assert generator.stats()["device_errors"] == 2
    generator.next()
    assert reserved(session) == 0


def test_what_cannot_be_gone_on_from_is_not_read(load, start):
    """Gemma 4 sees its pictures at once: a prefix that ends before the last is of no use."""
    subject = load("gemma4")
    front = text(3, 120)

    def prompt(name: str) -> Prepared:
        shown = subject.loaded.processor.apply_chat_template(
            [
                {"role": "system", "content": [{"type": "text", "text": front}]},
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]},
            ],
            add_generation_prompt=True,
            tokenize=False,
        )
        return build_inputs(subject.loaded.processor, shown, [RED], [name])

    start(subject).ask(Prepared(prompt("red").ids[: 3 * BLOCK]), prompt("red"), tokens=1)
    session = start(subject, feature_cache_bytes=0)
    session.ask(prompt("other"), tokens=1)
    stats = session.generator.stats()
    assert session.cached == 0
    assert stats["disk_read_bytes"] == 0


def test_pictures_are_read_once_for_all(load, start):
    subject = load("qwen3_vl")
    start(subject, prefix_cache_bytes=0).ask(prepare(subject, "Who?", {"red": RED}), tokens=1)
    session = start(subject, prefix_cache_bytes=0)
    prompts = [prepare(subject, f"{text(seed, 5)}?", {"red": RED}) for seed in range(8)]
    assert session.ask(*prompts) == subject.alone(prompts, 10)
    stats = session.generator.stats()
    assert (stats["images"], stats["images_recalled"], stats["disk_hits"]) == (0, 8, 1)

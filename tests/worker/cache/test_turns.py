"""Rows that want more from the folder than memory holds take turns, and none waits for ever."""

from __future__ import annotations

import random

import pytest

from cache_blocks import wait_until
from cache_session import QUICK, Session, block_bytes, drain, ids, request, reserved, slow
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.models.prepared import Prepared


def most_in_memory(session: Session) -> int:
    """Run to the end; the most bytes that prefixes took."""
    most = 0
    while session.generator.has_work():
        for response in session.generator.next():
            assert response.error is None, response.error
        most = max(most, session.generator.stats()["prefix_bytes"])
    return most


def step(session: Session) -> set[str]:
    """The rows that got a token."""
    return {
        response.request_id for response in session.generator.next() if response.token is not None
    }


@pytest.mark.parametrize("options", [{}, {"ssd_only": True}], ids=["memory", "ssd only"])
def test_rows_that_begin_at_once_take_turns(load, start, options):
    subject = load("llama")
    prompts = [ids(seed, 10) for seed in range(6)]
    start(subject).ask(*prompts, tokens=1)
    cap = 15 * block_bytes(subject)
    session = start(subject, prefix_cache_bytes=cap, **options)
    session.generator.insert([request(str(n), one) for n, one in enumerate(prompts)])
    assert most_in_memory(session) <= cap
    stats = session.generator.stats()
    assert stats["cached_tokens"] == 60 * BLOCK
    assert stats["disk_hits"] == 60
    again = start(subject, prefix_cache_bytes=cap, **options)
    assert again.ask(*prompts, tokens=4) == subject.alone(prompts, 4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {"qwen3_5", "llama"} else pytest.mark.slow)
        for name in QUICK
    ],
)
def test_chats_larger_than_memory_together_come_back_whole(load, start, name):
    """Each turn is longer; memory holds little more than one chat, the folder all."""
    subject = load(name)
    size = block_bytes(subject)
    for turn in range(2, 8):
        chats = [ids(seed, turn) for seed in range(4)]
        session = start(subject, prefix_cache_bytes=20 * size, prefill_step=2 * BLOCK)
        session.ask(*chats, tokens=1)
    session = start(subject, prefix_cache_bytes=20 * size)
    assert session.ask(*chats, tokens=4) == subject.alone(chats, 4)
    stats = session.generator.stats()
    assert min(session.cached_tokens) >= 6 * BLOCK
    assert stats["prefix_bytes"] <= 20 * size


def test_what_others_used_gives_way_to_what_a_row_takes_up_now(load, start):
    subject = load("llama")
    old, coming = [ids(1, 12), ids(2, 12)]
    start(subject).ask(old, coming, tokens=1)
    session = start(subject, prefix_cache_bytes=16 * block_bytes(subject))
    for _ in range(3):
        session.ask(old, tokens=1)
    assert session.cached == 12 * BLOCK
    session.ask(coming, tokens=1)
    assert session.cached == 12 * BLOCK
    stats = session.generator.stats()
    assert stats["disk_hits"] == 24
    assert stats["prefix_bytes"] <= 16 * block_bytes(subject)


def test_what_is_read_ahead_gives_way_to_a_row_whose_turn_has_come(load, start):
    subject = load("llama")
    ahead, urgent = ids(1, 7), ids(2, 14)
    start(subject).ask(ahead, urgent, tokens=1)
    session = start(subject, max_rows=2, prefix_cache_bytes=16 * block_bytes(subject))
    generator = session.generator
    with slow(session) as go:
        running = [request("long", ids(3, 1), 200), request("short", ids(4, 1), 20)]
        generator.insert([*running, request("ahead", ahead)])
        for _ in range(4):
            generator.next()
        assert reserved(session) >= 7 * block_bytes(subject)
        generator.insert([request("urgent", urgent, priority=9)])
        go.set()
        while "urgent" not in (said := step(session)):
            assert "long" in said, "it waits for a row that waits for it"
    assert generator.stats()["cached_tokens"] == 14 * BLOCK
    drain(session)
    assert generator.stats()["cached_tokens"] == (7 + 14) * BLOCK


def test_what_was_read_ahead_for_itself_holds_up_no_row(load, start):
    """The folder holds more of the prompt than memory: half came ahead, the rest has no room."""
    subject = load("llama")
    coming = ids(1, 20)
    start(subject).ask(coming, tokens=1)
    session = start(subject, max_rows=1, prefix_cache_bytes=16 * block_bytes(subject))
    session.generator.insert([request("now", ids(2, 1), 40), request("next", coming)])
    said: dict[str, list[int]] = {"now": [], "next": []}
    for _ in range(2000):
        for response in session.generator.next():
            said[response.request_id].append(response.token)
    assert said["next"] == subject.alone([coming], 4)[0]
    assert session.generator.stats()["cached_tokens"] >= 15 * BLOCK


def test_what_was_shared_with_a_row_that_has_begun_holds_up_no_row(load, start):
    """Both came ahead; the first has begun, and the second wants more than there is room for."""
    subject = load("llama")
    front = ids(1, 8).ids[: 8 * BLOCK]
    first, second = (Prepared([*front, *ids(n, blocks).ids]) for n, blocks in ((2, 2), (3, 8)))
    start(subject).ask(first, second, tokens=1)
    session = start(subject, max_rows=2, prefix_cache_bytes=14 * block_bytes(subject))
    running = [request("a", ids(4, 1), 30), request("b", ids(5, 1), 60)]
    rows = [*running, request("first", first, 80), request("second", second)]
    session.generator.insert(rows)
    said: dict[str, list[int]] = {row.request_id: [] for row in rows}
    for _ in range(3000):
        for response in session.generator.next():
            said[response.request_id].append(response.token)
    assert said["first"] == subject.alone([first], 80)[0]
    assert said["second"] == subject.alone([second], 4)[0]
    assert session.generator.stats()["cached_tokens"] >= (10 + 13) * BLOCK


def test_who_waits_for_room_is_not_overtaken_by_all(load, start):
    """Small prompts from the folder fit beside one another at any time; a large one does not."""
    subject = load("llama")
    large, small = ids(1, 10), [ids(100 + n, 4) for n in range(60)]
    start(subject).ask(large, *small, tokens=1)
    session = start(subject, prefix_cache_bytes=12 * block_bytes(subject), max_rows=6)
    todo = [request(str(n), one, 2 + n % 9) for n, one in enumerate(small)]
    session.generator.insert([*todo[:6], request("large", large), *todo[6:12]])
    del todo[:12]
    order: list[str] = []
    with slow(session) as go:
        go.set()
        while session.generator.has_work():
            if todo and session.generator.stats()["queued"] < 3:
                session.generator.insert([todo.pop(0)])
            order += [name for name in step(session) if name not in order]
    assert order.index("large") < 20
    assert session.generator.stats()["cached_tokens"] == (10 + 60 * 4) * BLOCK


def test_who_leaves_lets_the_next_have_the_room(load, start):
    subject = load("llama")
    first, second = ids(1, 10), ids(2, 10)
    start(subject).ask(first, second, tokens=1)
    session = start(subject, prefix_cache_bytes=15 * block_bytes(subject))
    generator = session.generator
    with slow(session) as go:
        generator.insert([request("first", first), request("second", second)])
        for _ in range(3):
            generator.next()
        assert 10 <= reserved(session) / block_bytes(subject) < 11
        generator.abort("first")
        generator.next()
        wait_until(lambda: generator.next() == [] and reserved(session) > 0)
        go.set()
        said = drain(session)
    assert said == {"second": subject.alone([second], 4)[0]}
    assert generator.stats()["cached_tokens"] == 10 * BLOCK


@pytest.mark.parametrize("seed", range(6))
def test_no_row_waits_for_ever(load, start, seed):
    """Prompts of all lengths, with fronts in common; rows come and are aborted at any time."""
    rng = random.Random(seed)
    subject = load("llama")
    fronts = [ids(n, rng.randrange(1, 9)).ids for n in range(3)]
    prompts = [
        ids(n, 0) if front is None else Prepared([*front, *ids(50 + n, length).ids])
        for n, front, length in (
            (n, rng.choice([*fronts, None]), rng.randrange(12)) for n in range(14)
        )
    ]
    start(subject).ask(*prompts, tokens=1)
    cap = rng.choice((9, 15, 30)) * block_bytes(subject)
    options = {"max_rows": rng.choice((1, 3, 8)), "prefill_step": rng.choice((64, 512))}
    session = start(subject, prefix_cache_bytes=cap, **options)
    generator = session.generator
    want = dict(enumerate(subject.alone(prompts, 5)))
    said: dict[int, list[int]] = {}
    waiting, aborted, steps = list(enumerate(prompts)), set[int](), 0
    while waiting or generator.has_work():
        if waiting and rng.random() < 0.4:
            n, prepared = waiting.pop()
            generator.insert([request(str(n), prepared, 5, priority=rng.randrange(3))])
        if rng.random() < 0.05:
            aborted.add(gone := rng.randrange(14))
            generator.abort(str(gone))
        for response in generator.next():
            if response.token is not None:
                said.setdefault(int(response.request_id), []).append(response.token)
        assert generator.stats()["prefix_bytes"] <= cap
        steps += 1
        assert steps < 20_000, "a row waits for ever"
    for n in set(want) - aborted:
        assert said[n] == want[n]
    generator.next()
    assert reserved(session) == 0

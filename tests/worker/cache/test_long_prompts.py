"""Memory smaller than what comes: fronts of prompts stay, and what many use is not driven out."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from cache_session import BLUE, MEGABYTE, RED, Session, block_bytes, ids, prepare
from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.store import BlockStore, fit
from mlxq_worker.models.prepared import Prepared
from pictures import COLORS, draw

MOVING = ("qwen3_5", "gemma3", "gemma4")


@pytest.mark.parametrize("step", [64, 200, 4096])
def test_a_prompt_longer_than_memory_keeps_its_front(load, step):
    subject = load("llama")
    cap = 40 * block_bytes(subject)
    session = Session(subject, prefix_cache_bytes=cap, prefill_step=step)
    prompt = ids(1, 60)
    want = subject.alone([prompt], 6)
    for turn in range(4):
        assert session.ask(prompt, tokens=6) == want
        assert session.cached >= (39 * BLOCK if turn else 0)
        assert session.generator.stats()["prefix_bytes"] <= cap
    stats = session.generator.stats()
    assert stats["prefix_stored"] == 40
    assert stats["prefix_evicted"] == 0


def test_strangers_leave_what_is_used_often(load):
    subject = load("llama")
    session = Session(subject, prefix_cache_bytes=40 * block_bytes(subject), prefill_step=128)
    often = [ids(seed, 4) for seed in range(6)]
    for _ in range(2):
        session.ask(*often, tokens=1)
    for seed in range(3):
        session.ask(ids(100 + seed, 60), tokens=1)
        session.ask(*often, tokens=1)
        assert session.cached_tokens == [4 * BLOCK] * 6


def test_two_long_prompts_that_come_at_once_do_not_drive_each_other_out(load):
    subject = load("llama")
    cap = 40 * block_bytes(subject)
    session = Session(subject, prefix_cache_bytes=cap, prefill_step=64)
    prompts = [ids(1, 60), ids(2, 60)]
    for _ in range(3):
        session.ask(*prompts, tokens=1)
    assert sum(session.cached_tokens) >= 30 * BLOCK
    stats = session.generator.stats()
    assert stats["prefix_stored"] <= 100, "blocks come and go"


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("blocks", [3, 9, 14])
def test_layers_that_move_take_up_as_much_as_fits(load, name, blocks):
    """A slice's blocks and what such layers hold at its end are of use together only."""
    subject = load(name)
    ample = Session(subject, prefill_step=2 * BLOCK)
    prompt = ids(1, 15)
    want = ample.ask(prompt, tokens=6)
    ample.ask(prompt, tokens=6)
    assert ample.cached >= 14 * BLOCK
    cap = ample.generator.stats()["prefix_bytes"] * blocks // 15
    session = Session(subject, prefill_step=2 * BLOCK, prefix_cache_bytes=cap)
    cached: list[int] = []
    for _ in range(4):
        assert session.ask(prompt, tokens=6) == want
        cached.append(session.cached)
        assert session.generator.stats()["prefix_bytes"] <= cap
    assert cached == sorted(cached)
    assert cached[1] >= (blocks - 2) * BLOCK
    assert session.generator.stats()["prefix_evicted"] <= 7, (
        "more than states that a later one stands for"
    )


@pytest.mark.parametrize("name", MOVING)
def test_no_block_is_stored_without_what_moves(load, name):
    """The last slice ends within a block, and behind the last border nothing can be taken up."""
    session = Session(load(name))
    prompt = ids(1, 6)
    stable = Prepared(prompt.ids, stable=3 * BLOCK + 4)
    session.ask(stable, tokens=2)
    stats = session.generator.stats()
    assert stats["prefix_stored"] == 3 + 1
    assert stats["prefix_misses"] == 6
    session.ask(stable, tokens=2)
    assert session.cached == 3 * BLOCK


def test_more_pictures_than_memory_do_not_drive_each_other_out(load):
    subject = load("qwen3_vl")
    rng = random.Random(3)
    known = Session(subject)
    known.ask(prepare(subject, "Who?", {"red": RED}), tokens=1)
    size = known.generator.stats()["feature_bytes"]

    session = Session(subject, prefix_cache_bytes=0, feature_cache_bytes=3 * size + size // 2)
    many = prepare(
        subject, "All?", {str(n): draw([(rng.choice(list(COLORS)), "circle", n)]) for n in range(5)}
    )
    for _ in range(2):
        session.ask(prepare(subject, "Who?", {"red": RED}), tokens=1)
    before = session.generator.stats()["images"]
    for _ in range(3):
        assert session.ask(many) == subject.alone([many], 10)
        session.ask(prepare(subject, "Where?", {"red": RED}), tokens=1)
    stats = session.generator.stats()
    assert stats["images"] - before == 3 * 5, "the one that is asked about often was encoded again"
    assert stats["feature_bytes"] <= 3 * size + size // 2
    assert stats["feature_evicted"] == 0


def test_a_picture_larger_than_memory_is_no_harm(load):
    subject = load("qwen3_vl")
    session = Session(subject, feature_cache_bytes=100)
    prompt = prepare(subject, "Who?", {"blue": BLUE})
    for _ in range(2):
        assert session.ask(prompt) == subject.alone([prompt], 10)
    assert session.generator.stats()["feature_bytes"] == 0


class Tree:
    """Prompts that branch, kept and taken up as rows do, without a model."""

    SIZE = 40

    def __init__(self, blocks: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = BlockStore(blocks * self.block(b"").nbytes)
        self.prompts = [[]]
        for n in range(25):
            front = self.rng.choice(self.prompts)
            cut = front[: self.rng.randrange(len(front) + 1)]
            own = [bytes([n, m]) * 16 for m in range(self.rng.randrange(1, 30))]
            self.prompts.append([*cut, *own])

    def block(self, key: bytes) -> Block:
        return Block(key.ljust(32), (mx.zeros(self.SIZE, mx.uint8),))

    def run(self) -> None:
        """One row: what is known is taken up, the rest is stored slice by slice."""
        keys = self.rng.choice(self.prompts)
        kept = len(self.store.peek(keys))
        brought = self.bring(keys, kept) if self.rng.random() < 0.3 else []
        found = self.store.peek(keys)
        self.store.use(found)
        kept = len(found)
        if brought:
            for _ in range(self.rng.randrange(4)):
                self.run()
            size = len(brought) * self.block(b"").nbytes
            assert self.store.peek(keys)[: len(found)] == found, "gone before its row began"
            self.store.unstage(brought, size, keys[:kept], keep=True)
        while kept < len(keys):
            until = min(len(keys), kept + self.rng.randrange(1, 9))
            blocks = [self.block(key) for key in keys[kept:until]]
            blocks = fit(blocks, self.store.room(keys[:until]))
            self.store.put(blocks, blocks, before=keys[:until])
            if len(blocks) < until - kept:
                break
            kept = until

    def bring(self, keys: list[bytes], here: int) -> list[bytes]:
        """Some of what follows comes from the SSD; other rows run before it is used."""
        size = self.block(b"").nbytes
        room = self.store.room(keys, displacing=self.rng.random() < 0.5)
        most = min(room // size, self.rng.randrange(9))
        brought = keys[here : here + most]
        if brought:
            self.store.reserve(len(brought) * size, keys[: here + most])
        self.store.stage([self.block(key) for key in brought])
        return brought

    def check(self) -> None:
        store = self.store
        assert store.nbytes <= store.max_bytes
        for keys in self.prompts:
            here = [key in store for key in keys]
            assert here == sorted(here, reverse=True), "a block stayed without those before it"


@pytest.mark.parametrize("blocks", [1, 7, 40, 90])
def test_no_block_outlives_those_before_it(blocks):
    tree = Tree(blocks, seed=blocks)
    for n in range(400):
        tree.run()
        tree.check()
        if n % 50 == 49:
            tree.store.give_up(tree.store.nbytes // 3)
            tree.check()


def test_little_memory_is_used_well(load):
    """A session of everything: as many hits as memory allows, and never beyond it."""
    subject = load("llama")
    session = Session(subject, prefix_cache_bytes=MEGABYTE // 8, prefill_step=96)
    prompts = [ids(seed, 3 + 7 * (seed % 4)) for seed in range(8)]
    want = subject.alone(prompts, 3)
    for _ in range(2):
        assert session.ask(*prompts, tokens=3) == want
        assert session.generator.stats()["prefix_bytes"] <= MEGABYTE // 8

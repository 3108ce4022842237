"""Requests of one generator that remembers, for tests of the caches."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from PIL.Image import Image

import tiny_models
from mlxq_schemas import Sampling
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.engine import BatchGenerator, Request
from mlxq_worker.models.prepared import Prepared
from pictures import draw

RED = draw([("red", "circle", 4), ("red", "square", 0)])
BLUE = draw([("blue", "diamond", 8), ("green", "square", 0)])
WORDS = ("fox", "cat", "sun", "dog", "map", "key", "cup", "hat", "box", "pen", "bird", "fish")
MEGABYTE = 1024 * 1024


QUICK = ("qwen3_vl", "qwen3_5", "gemma3", "gemma4", "smolvlm", "llama")
"""A family of each kind of cache and of picture; the others take longer and are marked slow."""

EVERY_FAMILY = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in tiny_models.FAMILIES
]


class Session:
    """Chats about one model, each turn run through one generator that remembers."""

    def __init__(self, subject, **options) -> None:
        self.subject = subject
        self.generator = BatchGenerator(
            subject.loaded.model,
            subject.loaded.processor,
            eos=frozenset(),
            **{
                "prefix_cache_bytes": 64 * MEGABYTE,
                "feature_cache_bytes": 64 * MEGABYTE,
                **options,
            },
        )
        self.count = 0
        self.cached_tokens: list[int] = []
        """Of the prompts asked last."""

    @property
    def cached(self) -> int:
        """Cached tokens of the prompt asked last."""
        return self.cached_tokens[-1]

    def ask(self, *prompts: Prepared, tokens: int = 10) -> list[list[int]]:
        """Greedy tokens of prompts that come at once."""
        said: dict[str, list[int]] = {}
        cached = dict[str, int]()
        requests = []
        for prepared in prompts:
            self.count += 1
            said[str(self.count)] = []
            cached[str(self.count)] = 0
            sampling = Sampling(max_tokens=tokens)
            requests.append(Request(str(self.count), prepared=prepared, sampling=sampling))
        self.generator.insert(requests)
        while self.generator.has_work():
            for response in self.generator.next():
                assert response.error is None, response.error
                if response.token is not None:
                    said[response.request_id].append(response.token)
                if response.usage:
                    cached[response.request_id] = response.usage.cached_tokens
        self.cached_tokens = list(cached.values())
        return list(said.values())


def prepare(subject, words: str, images: dict[str, Image]) -> Prepared:
    """One user turn; each image has the name of its content."""
    shown = images if subject.shows else {}
    prepared = subject.prepare(words, list(shown.values()))
    return Prepared(prepared.ids, prepared.arrays, tuple(shown), len(shown))


def text(seed: int, words: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def ids(seed: int, blocks: int) -> Prepared:
    """A text whose first ``blocks`` blocks are its own, and a few tokens more."""
    rng = random.Random(seed)
    return Prepared([rng.randrange(300, 900) for _ in range(BLOCK * blocks + 5)])


def block_bytes(subject) -> int:
    """Bytes in memory of one block of a text."""
    session = Session(subject)
    session.ask(ids(0, 4), tokens=1)
    stats = session.generator.stats()
    return stats["prefix_bytes"] // stats["prefix_blocks"]


@contextmanager
def slow(session: Session) -> Iterator[threading.Event]:
    """The SSD gives nothing until the event is set."""
    readers = session.generator._recall._caches._disk._readers
    run, go = readers._run, threading.Event()

    def gated(keys):
        assert go.wait(100)
        return run(keys)

    readers._run = gated
    try:
        yield go
    finally:
        go.set()


def reserved(session: Session) -> int:
    """Bytes set aside for what the SSD brings."""
    caches = session.generator._recall._caches
    return caches.prefixes.store.reserved + caches.features.store.reserved


def request(name: str, prepared: Prepared, tokens: int = 4, **options) -> Request:
    return Request(name, prepared=prepared, sampling=Sampling(max_tokens=tokens), **options)


def drain(session: Session) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    while session.generator.has_work():
        for response in session.generator.next():
            assert response.error is None, response.error
            if response.token is not None:
                said.setdefault(response.request_id, []).append(response.token)
    return said

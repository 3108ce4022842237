"""What a cache that knows the future would compute: the least that a size allows.

Prompts come one after the other. A block is of no use without those before it; the one whose next
use is furthest leaves first (Belady's rule), and what would leave at once is not kept at all.
Blocks before another are used just before it, so that the rule never parts a chain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.models.prepared import Prepared

NEVER = math.inf


@dataclass(frozen=True)
class Prompt:
    """Blocks that could be taken up, by numbers that equal beginnings share; ``pictures``, and how
    many tokens must be known for these to be of no interest."""

    tokens: int
    blocks: tuple[int, ...]
    pictures: tuple[str, ...] = ()
    shown: int = 0


@dataclass(frozen=True)
class Room:
    """Blocks and pictures that fit; ``kept_*``: those that fit where a restart leaves them."""

    blocks: float = NEVER
    pictures: float = NEVER
    kept_blocks: float = 0
    kept_pictures: float = 0


@dataclass(frozen=True)
class Least:
    """Tokens computed and pictures encoded."""

    tokens: int
    pictures: int


class Names:
    """Numbers blocks by all that stands before them, itself, and the pictures in it."""

    def __init__(self, media_tokens: Collection[int]) -> None:
        self._media_tokens = list(media_tokens)
        self._numbers: dict[tuple[int, tuple[int, ...], tuple[str, ...]], int] = {}

    def prompt(self, prepared: Prepared) -> Prompt:
        """The last token is always computed: the first token of the answer comes of it."""
        ids = np.asarray(prepared.ids)
        is_media = np.isin(ids, self._media_tokens)
        first = is_media & ~np.concatenate([[False], is_media[:-1]])
        owner = np.where(is_media, np.cumsum(first) - 1, -1)
        before, blocks = 0, list[int]()
        for at in range(0, (len(ids) - 1) // BLOCK * BLOCK, BLOCK):
            here = slice(at, at + BLOCK)
            shown = tuple(prepared.media[n] for n in sorted(set(owner[here].tolist())) if n >= 0)
            key = (before, tuple(ids[here].tolist()), shown)
            before = self._numbers.setdefault(key, len(self._numbers) + 1)
            blocks.append(before)
        last = int(np.flatnonzero(is_media)[-1]) + 1 if is_media.any() else 0
        return Prompt(len(ids), tuple(blocks), prepared.media, last)


def least(
    passes: Sequence[Sequence[Prompt]], room: Room, restarts: Collection[int] = ()
) -> list[Least]:
    """For each pass, in one run; ``restarts``: the passes before which memory is lost."""
    runs = [[prompt.blocks for prompt in prompts] for prompts in passes]
    hits = _hits(runs, room.blocks, room.kept_blocks, restarts)
    wanted = [
        [
            prompt.pictures if BLOCK * known < prompt.shown else ()
            for prompt, known in zip(prompts, found, strict=True)
        ]
        for prompts, found in zip(passes, hits, strict=True)
    ]
    seen = _hits(wanted, room.pictures, room.kept_pictures, restarts)
    return [
        Least(
            sum(prompt.tokens for prompt in prompts) - BLOCK * sum(found),
            sum(map(len, shown)) - sum(known),
        )
        for prompts, found, shown, known in zip(passes, hits, wanted, seen, strict=True)
    ]


def _hits(
    runs: Sequence[Sequence[Sequence[Hashable]]],
    room: float,
    kept: float,
    restarts: Collection[int],
) -> list[list[int]]:
    """How many names each item of each run finds."""
    names = [name for items in runs for item in items for name in item]
    later = _next_uses(names)
    cache = _Foreseeing(room)
    found: list[list[int]] = []
    at = 0
    for number, items in enumerate(runs):
        if number in restarts:
            cache.shrink(kept)
        found.append([])
        for item in items:
            found[-1].append(sum(cache.use(name, later[at + n]) for n, name in enumerate(item)))
            at += len(item)
    return found


def _next_uses(names: Sequence[Hashable]) -> list[float]:
    later: list[float] = [NEVER] * len(names)
    seen: dict[Hashable, int] = {}
    for at in range(len(names) - 1, -1, -1):
        later[at] = seen.get(names[at], NEVER)
        seen[names[at]] = at
    return later


class _Foreseeing:
    """Names in the cache, by when they are used next."""

    def __init__(self, room: float) -> None:
        self._room = room
        self._next: dict[Hashable, float] = {}
        self._heap: list[tuple[float, Hashable]] = []

    def use(self, name: Hashable, following: float) -> bool:
        """True if it was there; it stays if it is used again and others are not sooner."""
        known = self._next.pop(name, None) is not None
        if following != NEVER:
            self._next[name] = following
            heapq.heappush(self._heap, (-following, name))
            self.shrink(self._room)
        return known

    def shrink(self, room: float) -> None:
        """Let those go that are used last."""
        while len(self._next) > room:
            when, name = heapq.heappop(self._heap)
            if self._next.get(name) == -when:
                del self._next[name]

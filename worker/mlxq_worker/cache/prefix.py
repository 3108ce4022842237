"""Prefixes of prompts that rows have in common: fed once, taken up by all that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK, chain, moment_key, owners
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.store import BlockStore, evaluate, fit
from mlxq_worker.models.prepared import Prepared


@dataclass(frozen=True)
class Prefix:
    """Blocks from the front of a prompt, and what the moving layers hold at their end."""

    blocks: Sequence[Block] = ()
    moment: Block | None = None

    @property
    def tokens(self) -> int:
        return len(self.blocks) * BLOCK


class PrefixCache:
    """Keys and values by prefix. ``start`` is the root of all chains of names."""

    def __init__(
        self, layout: Layout, store: BlockStore, start: bytes, media_tokens: Collection[int]
    ) -> None:
        self.layout = layout
        self.store = store
        self._start = start
        self._media_tokens = media_tokens

    def keys(self, prepared: Prepared, ids: Sequence[int]) -> list[bytes]:
        """Names of the blocks of ``ids``, which begin with the prompt."""
        if not self.store.on:
            return []
        return chain(self._start, ids, *owners(prepared, self._media_tokens))

    def find(self, keys: Sequence[bytes]) -> Prefix:
        """The longest known prefix that can be taken up."""
        blocks = self.store.peek(keys)
        if not self.layout.moving:
            return Prefix(blocks)
        for end in range(len(blocks), 0, -1):
            moment = self.store.peek([moment_key(keys[end - 1])])
            if moment:
                return Prefix(blocks[:end], moment[0])
        return Prefix()

    def use(self, prefix: Prefix) -> list[Any]:
        """A row's own cache after a known prefix; lazy."""
        self.store.use([*prefix.blocks, *([prefix.moment] if prefix.moment else [])])
        return self.layout.restore(prefix.blocks, prefix.moment)

    def ways(
        self, keys: Sequence[bytes], known: Callable[[bytes], bool]
    ) -> Iterator[Sequence[bytes]]:
        """Runs of names that must be in memory for a prefix that can be taken up, the longest
        first; ``known`` says what is there somewhere."""
        if not self.layout.moving:
            yield keys
            return
        for end in range(len(keys), 0, -1):
            moment = moment_key(keys[end - 1])
            if known(moment):
                yield [*keys[:end], moment]

    def keep(self, keys: Sequence[bytes], cache: list[Any], kept: int, until: int) -> int | None:
        """Store the blocks ``kept`` to ``until`` of a row's own cache, as far as there is room.

        Returns how many of the row's blocks are stored now; None if there was too little room, or
        if those before have left: what follows would be of no use without them.
        """
        store, moving = self.store, self.layout.moving
        if moving and self.layout.standing(cache) != until * BLOCK:
            return kept  # of no use without what the moving layers hold behind them
        if not (store.ssd_only or all(key in store for key in keys[:kept])):
            return None
        room = store.room(keys[:until])
        new = [n for n in range(kept, until) if not store.kept(keys[n])]
        blocks = [self.layout.cut(keys[n], cache, (n + 1) * BLOCK) for n in new]
        if store.ssd_only and blocks:
            room -= kept * blocks[0].nbytes  # all of it must come back into that room
        if moving and not store.kept(moment_key(keys[until - 1])):
            blocks.append(self.layout.moment(moment_key(keys[until - 1]), cache))
        fitting = fit(blocks, room)
        whole = len(fitting) == len(blocks)
        if moving and not whole:
            return None
        evaluate(fitting)
        store.put(fitting, before=keys[:until])
        return until if whole else None

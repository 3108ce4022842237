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

        Where there is an SSD, it is offered what memory has room for when nothing else is there: no
        more could come back. Returns how many of the row's blocks are stored now; None if there was
        too little room, or if those before have left: what follows is of no use without them.
        """
        store, moving = self.store, self.layout.moving
        if moving and self.layout.standing(cache) != until * BLOCK:
            return kept  # of no use without what the moving layers hold behind them
        whole = store.keeps(keys[:kept])
        if not whole and store.disk is None:
            return None
        there = store.__contains__ if whole else store.known
        new = [n for n in range(kept, until) if not there(keys[n])]
        blocks = [self.layout.cut(keys[n], cache, (n + 1) * BLOCK) for n in new]
        if moving and not there(moment_key(keys[until - 1])):
            blocks.append(self.layout.moment(moment_key(keys[until - 1]), cache))
        if not blocks:
            return until
        here = fit(blocks, store.room(keys[:until])) if whole else ()
        if store.disk is None:
            offered = here
        else:
            before = new[0] * blocks[0].nbytes if new else 0
            offered = fit(blocks, store.max_bytes - before)
        if moving and len(offered) < len(blocks):
            return None
        if moving and len(here) < len(blocks):
            here = ()
        evaluate(offered)
        store.put(here, offered, before=keys[:until])
        return until if len(offered) == len(blocks) else None

"""Prefixes of prompts that rows have in common: fed once, taken up by all that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK, chain, moment_key, owners
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.store import BlockStore, evaluate
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

    def names(self, keys: Sequence[bytes], known: Callable[[bytes], bool]) -> list[bytes]:
        """What must be in memory for the longest prefix that is ``known`` somewhere."""
        if not self.layout.moving:
            return list(keys)
        ends = (n for n in range(len(keys), 0, -1) if known(moment_key(keys[n - 1])))
        end = next(ends, 0)
        return [*keys[:end], moment_key(keys[end - 1])] if end else []

    def keep(self, keys: Sequence[bytes], cache: list[Any], fed: int, kept: int) -> int:
        """Store the whole blocks of a row's own cache between ``kept`` and ``fed`` tokens.

        Returns to where the row's blocks are kept now.
        """
        first, until = kept // BLOCK, min(fed // BLOCK, len(keys))
        if until <= first:
            return kept
        self.store.counts["misses"] += until - first
        ends = [n + 1 for n in range(first, until) if keys[n] not in self.store]
        blocks = [self.layout.cut(keys[end - 1], cache, end * BLOCK) for end in ends]
        if self.layout.moving and self.layout.standing(cache) == until * BLOCK:
            blocks.append(self.layout.moment(moment_key(keys[until - 1]), cache))
        evaluate(blocks)
        self.store.put(blocks)
        return until * BLOCK

"""Prefixes of prompts that rows have in common: fed once, taken up by all that follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK, chain, owners
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.store import BlockStore, evaluate
from mlxq_worker.models.prepared import Prepared


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

    def find(self, keys: Sequence[bytes]) -> Sequence[Block]:
        """The longest known run of blocks that can be taken up."""
        return self.layout.prefix(self.store.peek(keys))

    def keep(self, keys: Sequence[bytes], cache: list[Any], fed: int, kept: int) -> int:
        """Store the whole blocks of a row's own cache between ``kept`` and ``fed`` tokens.

        Returns to where the row's blocks are kept now.
        """
        until = min(fed // BLOCK, len(keys))
        first = kept // BLOCK
        if until <= first:
            return kept
        self.store.counts["misses"] += until - first
        blocks = [
            self.layout.cut(keys[n], cache, (n + 1) * BLOCK)
            for n in range(first, until)
            if keys[n] not in self.store or n == until - 1
        ]
        evaluate(blocks)
        self.store.put(blocks)
        return until * BLOCK

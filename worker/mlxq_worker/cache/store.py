"""Blocks in memory, bounded in bytes: what was used longest ago leaves first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxq_worker.cache.block import Block

if TYPE_CHECKING:
    from mlxq_worker.cache.disk import DiskTier

COUNTERS = (
    *("hits", "misses", "stored", "stored_bytes"),
    *("evicted", "evicted_bytes", "promoted", "promoted_bytes"),
)
"""Blocks and bytes. ``hits`` were taken up by a row, ``misses`` computed by one; ``stored`` were
put in memory, by whomever; ``promoted`` came from the SSD."""


class BlockStore:
    """Blocks by name; behind it, where there is one, the SSD tier. Engine thread only.

    ``max_bytes`` 0 keeps nothing in memory. ``counts`` has :data:`COUNTERS`.
    """

    def __init__(self, max_bytes: int, disk: DiskTier | None = None) -> None:
        self._max_bytes = max_bytes
        self._disk = disk
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self.nbytes = 0
        self.counts: Counter[str] = Counter()

    @property
    def on(self) -> bool:
        """False if nothing is ever kept."""
        return self._max_bytes > 0 or self._disk is not None

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def peek(self, keys: Sequence[bytes]) -> list[Block]:
        """The blocks of ``keys`` up to the first that is not here."""
        blocks: list[Block] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def use(self, blocks: Sequence[Block]) -> None:
        """Note that a run of blocks is taken up now."""
        self.counts["hits"] += len(blocks)
        # A block is of no use without those before it, so these are to leave later.
        for block in reversed(blocks):
            if block.key in self._blocks:
                self._blocks.move_to_end(block.key)
        self._offer(blocks)

    def put(self, blocks: Sequence[Block]) -> None:
        """Keep blocks (a run, first to last) that are evaluated; one that is here stays."""
        self._offer(blocks)
        for block in reversed(blocks):
            if block.key not in self._blocks and block.nbytes <= self._max_bytes:
                self._blocks[block.key] = block
                self.nbytes += block.nbytes
                self.counts["stored"] += 1
                self.counts["stored_bytes"] += block.nbytes
            if block.key in self._blocks:
                self._blocks.move_to_end(block.key)
        self.shrink_to(self._max_bytes)

    def _offer(self, blocks: Sequence[Block]) -> None:
        """Let the SSD have what it wants, which is what was seen before."""
        if self._disk is None:
            return
        offered = False
        for block in blocks:
            if self._disk.wants(block.key) and self._disk.offer(block.to_host()):
                offered = True
        if offered:
            # In the order of the run: without its first block it is of no use.
            self._disk.touch([block.key for block in blocks])

    def shrink_to(self, nbytes: int) -> None:
        """Drop what was used longest ago until no more than ``nbytes`` are held."""
        while self.nbytes > max(nbytes, 0) and self._blocks:
            _, block = self._blocks.popitem(last=False)
            self.nbytes -= block.nbytes
            self.counts["evicted"] += 1
            self.counts["evicted_bytes"] += block.nbytes


def evaluate(blocks: Sequence[Block]) -> None:
    """Have the blocks' arrays computed, so that no graph and no larger array lives on in them."""
    mx.async_eval([block.arrays for block in blocks])

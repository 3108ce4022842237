"""Blocks in memory, bounded in bytes: what was used longest ago leaves first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.proof import Proof

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

    What is put may be used at once, but goes to the SSD only when ``proof`` says that it was
    computed without an error. ``max_bytes`` 0 keeps nothing in memory. ``counts`` has
    :data:`COUNTERS`.
    """

    def __init__(
        self, max_bytes: int, disk: DiskTier | None = None, proof: Proof | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._disk = disk
        self._proof = proof or Proof()
        self._unproved: OrderedDict[bytes, int] = OrderedDict()
        self._offers: list[tuple[int, Sequence[Block]]] = []
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
        self._offer(blocks, max((self._unproved.get(block.key, 0) for block in blocks), default=0))

    def put(self, blocks: Sequence[Block]) -> None:
        """Keep blocks (a run, first to last) that are queued; one that is here stays."""
        self._offer(blocks, self._proof.coming)
        for block in reversed(blocks):
            if block.key not in self._blocks and block.nbytes <= self._max_bytes:
                self._blocks[block.key] = block
                self._unproved[block.key] = self._proof.coming
                self.nbytes += block.nbytes
                self.counts["stored"] += 1
                self.counts["stored_bytes"] += block.nbytes
            if block.key in self._blocks:
                self._blocks.move_to_end(block.key)
        self.shrink_to(self._max_bytes)

    @property
    def unproved(self) -> bool:
        """True while there is something that may yet turn out to be wrong."""
        return bool(self._unproved or self._offers)

    def publish(self) -> None:
        """Let the SSD have what has been proved meanwhile."""
        proved = self._proof.proved
        while self._unproved and next(iter(self._unproved.values())) <= proved:
            self._unproved.popitem(last=False)
        due = [blocks for step, blocks in self._offers if step <= proved]
        self._offers = [offer for offer in self._offers if offer[0] > proved]
        for blocks in due:
            self._to_disk(blocks)

    def distrust(self) -> None:
        """The device has failed: drop what is not proved."""
        self._offers.clear()
        for key in list(self._unproved):
            self._evicted(self._blocks.pop(key))

    def _offer(self, blocks: Sequence[Block], step: int) -> None:
        """Let the SSD have blocks as soon as a step is proved."""
        if self._disk is not None and blocks:
            self._offers.append((step, blocks))
            if step <= self._proof.proved:
                self.publish()

    def _to_disk(self, blocks: Sequence[Block]) -> None:
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
            self._evicted(block)

    def _evicted(self, block: Block) -> None:
        self._unproved.pop(block.key, None)
        self.nbytes -= block.nbytes
        self.counts["evicted"] += 1
        self.counts["evicted_bytes"] += block.nbytes


def evaluate(blocks: Sequence[Block]) -> None:
    """Have the blocks' arrays computed, so that no graph and no larger array lives on in them."""
    mx.async_eval([block.arrays for block in blocks])

"""Blocks in memory, bounded in bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.packing import Packing
from mlxq_worker.cache.proof import Proof
from mlxq_worker.cache.recency import Recency

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
    computed without an error. ``max_bytes``: most bytes in memory; 0: nothing is ever kept, on the
    SSD neither. ``ssd_only``: memory holds only what rows wait for. ``counts`` has
    :data:`COUNTERS`.
    """

    def __init__(
        self,
        max_bytes: int,
        disk: DiskTier | None = None,
        proof: Proof | None = None,
        *,
        ssd_only: bool = False,
        packing: Packing | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self.ssd_only = ssd_only
        self.disk = disk if max_bytes else None
        self._packing = packing
        self._proof = proof or Proof()
        self._unproved: OrderedDict[bytes, int] = OrderedDict()
        self._offers: list[tuple[int, Sequence[Block], Sequence[bytes]]] = []
        self._blocks: dict[bytes, Block] = {}
        self._recency = Recency(max_bytes)
        self._staged: dict[bytes, Block] = {}
        self._reserved = 0
        self.changes = 0
        self.counts: Counter[str] = Counter()

    @property
    def on(self) -> bool:
        """False if nothing is ever kept."""
        return self.max_bytes > 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with those that are promised to what comes from the SSD."""
        return self._recency.nbytes + self._reserved

    def __len__(self) -> int:
        return len(self._blocks) + len(self._staged)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks or key in self._staged

    def known(self, key: bytes) -> bool:
        """True if the block is in memory or on the SSD."""
        return key in self or (self.disk is not None and self.disk.has(key))

    def keeps(self, keys: Sequence[bytes]) -> bool:
        """True if what goes on from a run of blocks may be kept in memory: all of it is there."""
        return not self.ssd_only and all(key in self for key in keys)

    def peek(self, keys: Sequence[bytes]) -> list[Block]:
        """The blocks of ``keys`` up to the first that is not here."""
        blocks: list[Block] = []
        for key in keys:
            block = self._blocks.get(key) or self._staged.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def renew(self, keys: Sequence[bytes]) -> None:
        """A row asks for a run of blocks: what is here of it is to leave later."""
        self._recency.touch(keys)

    def use(self, blocks: Sequence[Block]) -> None:
        """Note that a run of blocks is taken up now."""
        self.counts["hits"] += len(blocks)
        names = [block.key for block in blocks]
        # What is staged will be stored as new; nothing behind it may outrank it.
        self._recency.use(list(takewhile(lambda key: key not in self._staged, names)))
        self._recency.touch(names)
        self._offer(blocks, max((self._unproved.get(block.key, 0) for block in blocks), default=0))

    def put(
        self, blocks: Sequence[Block], offered: Sequence[Block], before: Sequence[bytes] = ()
    ) -> None:
        """Keep blocks (a run, first to last) that are queued; one that is here stays.

        ``offered``: the blocks, and what follows them, for the SSD. ``before``: names of what the
        run goes on from, first to last.
        """
        self._offer(offered, self._proof.coming, before)
        self._keep(blocks, before)

    def room(self, chain: Sequence[bytes], *, displacing: bool = False) -> int:
        """Bytes that can be added to a chain without a loss to itself, or to what was of use;
        ``displacing`` what was of use, if nobody waits for it."""
        spare = self._recency.displaceable if displacing else self._recency.spare
        return max(0, self.max_bytes - self.nbytes + spare(chain))

    @property
    def reserved(self) -> int:
        """Bytes promised to what comes from the SSD."""
        return self._reserved

    def reserve(self, nbytes: int, chain: Sequence[bytes]) -> None:
        """Make room for blocks of a chain that come from the SSD, which is held until then."""
        self._recency.touch(chain)
        self._recency.hold(chain)
        self._reserved += nbytes
        self._shrink()

    def stage(self, blocks: Sequence[Block]) -> None:
        """Blocks for which room was reserved are here, for the rows that wait for them."""
        self.counts["promoted"] += len(blocks)
        self.counts["promoted_bytes"] += sum(block.nbytes for block in blocks)
        self._staged |= {block.key: block for block in blocks}
        self.changes += 1

    def unstage(
        self, keys: Sequence[bytes], reserved: int, chain: Sequence[bytes], *, keep: bool
    ) -> None:
        """No row waits any more for what room was reserved for. ``keep``: it stays in memory as far
        as the ``chain`` that it belongs to is there."""
        self._reserved -= reserved
        found = {key: self._staged.pop(key) for key in keys if key in self._staged}
        self._recency.release(chain)
        if not keep:
            return
        whole = list(takewhile(lambda key: key in self or key in found, chain))
        if kept := [found[key] for key in whole if key in found]:
            self._keep(kept, whole)

    def _keep(self, blocks: Sequence[Block], before: Sequence[bytes] = ()) -> None:
        if self.ssd_only:
            return
        new = [b for b in blocks if b.key not in self._blocks and b.nbytes <= self.max_bytes]
        for block in new:
            self._blocks[block.key] = block
            self._recency.add(block.key, block.nbytes)
            self._unproved[block.key] = self._proof.coming
            self.counts["stored"] += 1
            self.counts["stored_bytes"] += block.nbytes
        self._recency.touch([*before, *(block.key for block in blocks)])
        self._shrink()
        self.changes += bool(new)

    @property
    def unproved(self) -> bool:
        """True while there is something that may yet turn out to be wrong."""
        return bool(self._unproved or self._offers)

    def publish(self) -> None:
        """Let the SSD have what has been proved meanwhile."""
        proved = self._proof.proved
        while self._unproved and next(iter(self._unproved.values())) <= proved:
            self._unproved.popitem(last=False)
        due = [offer for offer in self._offers if offer[0] <= proved]
        self._offers = [offer for offer in self._offers if offer[0] > proved]
        for _, blocks, before in due:
            self._to_disk(blocks, before)

    def distrust(self) -> None:
        """The device has failed: drop what is not proved."""
        self._offers.clear()
        for key in list(self._unproved):
            self._evict(key)

    def _offer(self, blocks: Sequence[Block], step: int, before: Sequence[bytes] = ()) -> None:
        """Let the SSD have blocks as soon as a step is proved."""
        if self.disk is not None and blocks:
            self._offers.append((step, blocks, before))
            if step <= self._proof.proved:
                self.publish()

    def _to_disk(self, blocks: Sequence[Block], before: Sequence[bytes]) -> None:
        """Let the SSD have what it wants, which is what was seen before."""
        if self.disk is None:
            return
        for block in blocks:
            if self.disk.wants(block.key):
                packed = self._packing.pack(block) if self._packing else block
                self.disk.offer(packed.to_host())
        # In the order of the chain: without its first block it is of no use.
        self.disk.touch(list(dict.fromkeys([*before, *(block.key for block in blocks)])))

    def forget(self, keys: Sequence[bytes], reason: str) -> None:
        """Drop blocks that cannot be right, from the SSD too."""
        for key in keys:
            self._staged.pop(key, None)
            if key in self._blocks:
                self._evict(key)
            if self.disk is not None:
                self.disk.distrust(key, reason)

    def give_up(self, nbytes: int) -> None:
        """Drop blocks until so many bytes are free, or none is left."""
        self._shrink_to(self._recency.nbytes - nbytes)

    def _shrink(self) -> None:
        self._shrink_to(self.max_bytes - self._reserved)

    def _shrink_to(self, nbytes: int) -> None:
        while self._recency.nbytes > nbytes and (key := self._recency.first()) is not None:
            self._evict(key)

    def _evict(self, key: bytes) -> None:
        block = self._blocks.pop(key)
        self._recency.drop(key)
        self._unproved.pop(key, None)
        self.counts["evicted"] += 1
        self.counts["evicted_bytes"] += block.nbytes


def evaluate(blocks: Sequence[Block]) -> None:
    """Have the blocks' arrays computed, so that no graph and no larger array lives on in them."""
    mx.async_eval([block.arrays for block in blocks])


def fit(blocks: Sequence[Block], room: int) -> Sequence[Block]:
    """As many blocks from the front as take no more than ``room`` bytes."""
    total = 0
    for n, block in enumerate(blocks):
        total += block.nbytes
        if total > room:
            return blocks[:n]
    return blocks

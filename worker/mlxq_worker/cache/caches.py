"""What a generator remembers between rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import root
from mlxq_worker.cache.features import FeatureCache
from mlxq_worker.cache.host import HostBlock
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.prefix import PrefixCache
from mlxq_worker.cache.proof import Proof
from mlxq_worker.cache.store import COUNTERS, BlockStore
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import device_fault

if TYPE_CHECKING:
    from mlxq_worker.cache.disk import DiskTier

log = logging.getLogger(__name__)

CLOSING = 5.0
"""Seconds for the SSD to write what waits when a generator ends."""

LAYOUT = "blocks-2"
"""What files on disk hold. What tells models apart is in the names of blocks."""


class Caches:
    """Prefixes and pictures in memory and, with ``disk``, on SSD too.

    ``identity`` names weights and processor settings: what is on disk is shared by all workers of
    one identity. ``prefix_bytes`` and ``feature_bytes`` are the most bytes in memory; 0: off.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        prefix_bytes: int = 0,
        feature_bytes: int = 0,
        identity: str = "",
        disk: DiskTier | None = None,
    ) -> None:
        layout = Layout(adapter.make_cache)
        start = root(identity, type(adapter).__name__, layout.name)
        media = adapter.media_tokens
        self.proof = Proof()
        prefixes, features = (
            BlockStore(most, disk, self.proof) for most in (prefix_bytes, feature_bytes)
        )
        self.prefixes = PrefixCache(layout, prefixes, start, media)
        self.features = FeatureCache(features, start, media)
        self._disk = disk

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.prefixes.store.nbytes + self.features.store.nbytes

    def make_room(self, nbytes: int) -> None:
        """Give up as many bytes of memory, the oldest first; prefixes before pictures."""
        nbytes = max(0, nbytes)
        for store in self._stores:
            spare = min(nbytes, store.nbytes)
            store.shrink_to(store.nbytes - spare)
            nbytes -= spare

    def fetch(self, store: BlockStore, keys: Sequence[bytes]) -> Future[list[HostBlock]] | None:
        """Begin to bring what the SSD holds of ``keys``; None if that is nothing."""
        if self._disk is None:
            return None
        missing = (key for key in keys if key not in store)
        wanted = list(takewhile(self._disk.has, missing))
        return self._disk.load(wanted) if wanted else None

    def fetch_prefix(self, keys: Sequence[bytes]) -> Future[list[HostBlock]] | None:
        """The same for a prefix, with all that is needed to take it up."""
        disk, store = self._disk, self.prefixes.store
        if disk is None:
            return None
        names = self.prefixes.names(keys, lambda key: key in store or disk.has(key))
        return self.fetch(store, names)

    @staticmethod
    def arrived(store: BlockStore, blocks: Sequence[HostBlock]) -> None:
        """Take what the SSD brought into memory."""
        arrived = [Block.from_host(block) for block in blocks]
        store.counts["promoted"] += len(arrived)
        store.counts["promoted_bytes"] += sum(block.nbytes for block in arrived)
        store.put(arrived)

    @property
    def _stores(self) -> tuple[BlockStore, BlockStore]:
        return self.prefixes.store, self.features.store

    def publish(self) -> None:
        """Let the SSD have what has been proved meanwhile; waits for no computation."""
        for store in self._stores:
            store.publish()

    def settle(self) -> None:
        """There is nothing more to do for now: wait for what is queued, and publish it.

        Raises what the device met.
        """
        if any(store.unproved for store in self._stores):
            self.proof.synchronise()
            self.publish()

    def distrust(self) -> None:
        """The device has failed: drop what is not proved."""
        for store in self._stores:
            store.distrust()

    def close(self) -> None:
        """Let the SSD finish what it writes. What the device meets now is only logged."""
        try:
            self.settle()
        except Exception as error:
            if device_fault(error) is None:
                raise
            log.warning("the device failed at the end: %s", error)
            self.distrust()
        if self._disk is not None:
            self._disk.close(CLOSING)

    def stats(self) -> dict[str, Any]:
        """Counters and bytes by name."""
        found: dict[str, Any] = {}
        for name, store in (("prefix", self.prefixes.store), ("feature", self.features.store)):
            found |= {f"{name}_bytes": store.nbytes, f"{name}_blocks": len(store)}
            found |= {f"{name}_{count}": store.counts[count] for count in COUNTERS}
        if self._disk is not None:
            found |= {f"disk_{key}": value for key, value in self._disk.stats().items()}
        return found

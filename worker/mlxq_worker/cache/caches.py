"""What a generator remembers between rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mlxq_worker.cache.chain import BLOCK, root
from mlxq_worker.cache.features import FeatureCache
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.loads import Load, Loads
from mlxq_worker.cache.packing import Packing
from mlxq_worker.cache.prefix import PrefixCache
from mlxq_worker.cache.proof import Proof
from mlxq_worker.cache.store import COUNTERS, BlockStore
from mlxq_worker.cache.template import Template
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import device_fault
from mlxq_worker.models.versions import library_versions

if TYPE_CHECKING:
    from mlxq_worker.cache.disk import DiskTier

log = logging.getLogger(__name__)

CLOSING = 5.0
"""Seconds for the SSD to write what waits when a generator ends."""

LAYOUT = "blocks-2"
"""How blocks are made of caches. It is in their files, and in their names with all else that
tells them apart: a block of another layout is not found rather than found and refused."""


class Caches:
    """Prefixes and pictures in memory and, with ``disk``, on SSD too.

    ``identity`` names weights and processor settings: what is on disk is shared by all workers of
    one identity. ``prefix_bytes`` and ``feature_bytes`` are the most bytes in memory; 0: off, on
    disk too. ``ssd_only``: memory holds only what comes from the disk for rows that wait for it.
    ``packing``: keys and values are not exact on disk; prefixes have names of their own then.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        prefix_bytes: int = 0,
        feature_bytes: int = 0,
        identity: str = "",
        disk: DiskTier | None = None,
        ssd_only: bool = False,
        packing: Packing | None = None,
    ) -> None:
        layout = Layout(adapter.make_cache)
        # Other libraries or another way to cut blocks give other values under other names.
        start = root(identity, type(adapter).__name__, layout.name, LAYOUT, library_versions())
        media = adapter.media_tokens
        self.proof = Proof()
        prefixes, features = (
            BlockStore(most, disk, self.proof, ssd_only=ssd_only, packing=how)
            for most, how in ((prefix_bytes, packing), (feature_bytes, None))
        )
        beginning = root(start.hex(), packing.label) if packing else start
        self.prefixes = PrefixCache(layout, prefixes, beginning, media)
        self.features = FeatureCache(features, start, media)
        self._disk = disk
        template = Template(adapter, layout, packing)
        self._prefix_loads = Loads(prefixes, template.prefix, template.prefix_bytes)
        self._feature_loads = Loads(features, template.features)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.prefixes.store.nbytes + self.features.store.nbytes

    def make_room(self, nbytes: int) -> None:
        """Give up as many bytes of memory, the oldest first; prefixes before pictures, and what
        rows wait for last."""
        most = self.nbytes - max(0, nbytes)
        self._shrink(most)
        if self.loading and self.nbytes > most:
            self.drop_loads()
            self._shrink(most)

    def _shrink(self, nbytes: int) -> None:
        for store in self._stores:
            store.give_up(self.nbytes - nbytes)

    @property
    def loading(self) -> bool:
        """True while rows wait for the SSD, or for what it has brought."""
        return bool(self._prefix_loads or self._feature_loads)

    @property
    def on_disk(self) -> bool:
        """True if something may come from the SSD."""
        return self._disk is not None

    def renew(self, keys: Sequence[bytes], pictures: Sequence[bytes]) -> None:
        """A row asks for a prefix and for pictures: what is in memory is to stay until it begins,
        if it can."""
        self.prefixes.store.renew(keys)
        self.features.store.renew(pictures)

    def load(
        self,
        keys: Sequence[bytes],
        pictures: Sequence[bytes],
        *,
        least: int = 0,
        shown: int = 0,
        ahead: bool = False,
        yielding: bool = False,
    ) -> list[Load] | None:
        """Begin to bring what the SSD holds of a row's prefix and of its pictures; what to wait
        for. None: others whose turn has come hold the room, so ask again when they have begun.
        ``least``: a prefix of fewer blocks is of no use. ``shown``: after so many tokens pictures
        are not needed. ``ahead``: the row's turn has not come; half of the memory is for others.
        ``yielding``: one that came before waits for room, so none is taken."""
        if self._disk is None:
            return []
        prefix = self._prefix_run(keys, least, ahead, yielding)
        known = len(prefix or ()) - self.prefixes.layout.moving
        wanted = () if known * BLOCK >= shown else pictures
        features = self._pictures_run(wanted, ahead, yielding)
        # Nothing is held while a row waits for room, or two could wait for each other.
        if prefix is None or features is None:
            return None
        return [
            *self._prefix_loads.begin(prefix, ahead=ahead),
            *self._feature_loads.begin(features, ahead=ahead),
        ]

    def _prefix_run(
        self, keys: Sequence[bytes], least: int, ahead: bool, yielding: bool
    ) -> Sequence[bytes] | None:
        store, loads = self.prefixes.store, self._prefix_loads
        whole = self.prefixes.layout.moving
        for names in self.prefixes.ways(keys, store.known):
            reach = loads.reach(names, ahead=ahead, yielding=yielding)
            if reach is None:
                return None
            if reach - whole < least:
                break
            if reach == len(names) or not whole:
                return names[:reach]
        return ()

    def _pictures_run(
        self, pictures: Sequence[bytes], ahead: bool, yielding: bool
    ) -> Sequence[bytes] | None:
        reach = self._feature_loads.reach(pictures, ahead=ahead, yielding=yielding)
        if reach is None:
            return None
        # All of them or none: a prompt's pictures are encoded together.
        return pictures if reach == len(pictures) else ()

    def arrived(self, load: Load) -> bool:
        """True once what the SSD brings is in memory."""
        return all(loads.arrived(load) for loads in self._loads if load in loads)

    def tend(self, wanted: Collection[Load], turn: Collection[Load]) -> None:
        """Let go of what no row waits for any more; ``turn``: for what rows wait whose turn has
        come."""
        for loads in self._loads:
            loads.tend(wanted, turn)

    def drop_loads(self) -> None:
        """Rows that wait for the SSD compute what they lack."""
        for loads in self._loads:
            loads.drop()

    @property
    def _loads(self) -> tuple[Loads, Loads]:
        return self._prefix_loads, self._feature_loads

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
        self.drop_loads()
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

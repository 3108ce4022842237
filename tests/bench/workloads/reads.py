"""Which blocks came from the SSD, and which of these rows took up."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.models.prepared import Prepared


class Reads:
    """Watches a generator's loads from its folder. A block that is read again before a row took it
    up was read in vain."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._caches = generator._recall._caches
        self._unused: dict[bytes, int] = {}
        self._pictures = 0
        self.used_bytes = 0
        disk = self._caches._disk
        if disk is not None:
            load = disk.load

            def watched(*arguments: Any, **named: Any) -> Future[Any]:
                future = load(*arguments, **named)
                future.add_done_callback(self._arrived)
                return future

            disk.load = watched

    def _arrived(self, future: Future[Any]) -> None:
        if not future.cancelled():
            self._unused |= {block.key: block.nbytes for block in future.result()}

    def begin(self) -> None:
        """A pass begins: what was read until now, and never used, counts no more."""
        self._unused.clear()
        self._pictures = self._generator.stats()["feature_hits"]
        self.used_bytes = 0

    def taken_up(self, prepared: Prepared, cached: int) -> None:
        """A row has begun, with ``cached`` tokens out of the caches."""
        blocks = self._caches.prefixes.keys(prepared, prepared.ids)[: cached // BLOCK]
        self.used_bytes += sum(self._unused.pop(key, 0) for key in blocks)
        for key in self._caches.features.keys(prepared):
            # Usage does not say whether a row's pictures were known, the counter how many were.
            if key in self._unused and self._pictures < self._generator.stats()["feature_hits"]:
                self._pictures += 1
                self.used_bytes += self._unused.pop(key)

"""Which blocks came from the SSD, and which of these rows took up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from mlxq_worker.cache.block import Block


class Reads:
    """Watches a generator's loads from its folder. A block that is read again before a row took it
    up was read in vain."""

    def __init__(self, generator: Any) -> None:
        caches = generator._recall._caches
        self._unused: dict[bytes, int] = {}
        self.used_bytes = 0
        if caches._disk is None:
            return
        caches._disk.load = self._watched(caches._disk.load)
        for store in (caches.prefixes.store, caches.features.store):
            store.use = self._noted(store.use)

    def begin(self) -> None:
        """A pass begins: what was read until now, and never used, counts no more."""
        self._unused.clear()
        self.used_bytes = 0

    def _watched(self, load: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        def watched(*arguments: Any, **named: Any) -> Future[Any]:
            future = load(*arguments, **named)
            future.add_done_callback(self._arrived)
            return future

        return watched

    def _arrived(self, future: Future[Any]) -> None:
        if not future.cancelled():
            self._unused |= {block.key: block.nbytes for block in future.result()}

    def _noted(self, use: Callable[..., None]) -> Callable[..., None]:
        def noted(blocks: Sequence[Block]) -> None:
            self.used_bytes += sum(self._unused.pop(block.key, 0) for block in blocks)
            use(blocks)

        return noted

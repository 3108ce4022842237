"""Encoded pictures by their content: a picture seen before is not encoded again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import mlx.core as mx
import numpy as np

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import owners
from mlxq_worker.cache.store import BlockStore, evaluate, fit
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision


class FeatureCache:
    """Features by picture, or by all pictures of a prompt where these cannot be told apart.

    ``start`` says all that makes the same bytes give other features: weights and the
    processor's settings.
    """

    def __init__(self, store: BlockStore, start: bytes, media_tokens: Collection[int]) -> None:
        self.store = store
        self._start = start
        self._media_tokens = media_tokens

    def keys(self, prepared: Prepared) -> list[bytes]:
        """Names of the prompt's pictures, in order."""
        if not prepared.images:
            return []
        return self._keys(owners(prepared, self._media_tokens)[1])

    def _keys(self, names: Sequence[bytes]) -> list[bytes]:
        return [hashlib.sha256(b"vision" + self._start + name).digest() for name in names]

    def find(self, keys: Sequence[bytes], tokens: int) -> Vision | None:
        """What the encoder gave for these pictures, which stand for ``tokens`` tokens of the
        prompt; None unless all are known."""
        blocks = self.store.peek(keys)
        if not keys or len(blocks) < len(keys):
            return None
        if sum(block.arrays[0].shape[0] for block in blocks) != tokens:
            self.store.forget(keys, "features of another number of tokens")
            return None
        self.store.use(blocks)
        parts = zip(*(block.arrays for block in blocks), strict=True)
        features, *deepstack = (mx.concatenate(list(part)) for part in parts)
        return Vision(features, tuple(deepstack))

    def keep(self, prepared: Prepared, vision: Vision) -> None:
        """Store what the encoder gave for a prompt's pictures."""
        if vision.features is None or not self.store.on:
            return
        store = self.store
        whose, names = owners(prepared, self._media_tokens)
        keys = self._keys(names)
        store.counts["misses"] += len(keys)
        there = store.known if store.ssd_only else store.__contains__
        whose = whose[whose >= 0]
        blocks: list[Block] = []
        for n, key in enumerate(keys):
            if not there(key):
                rows = mx.array(np.flatnonzero(whose == n))
                arrays = [layer[rows] for layer in (vision.features, *vision.deepstack)]
                blocks.append(Block(key, tuple(arrays)))
        here = fit(blocks, store.room(keys))
        offered = here if store.disk is None else fit(blocks, store.max_bytes)
        evaluate(offered)
        store.put(here, offered, before=keys)

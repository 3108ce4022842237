"""From rows' own caches to a batch's, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merge(caches: Sequence[list[Any]]) -> list[Any]:
    """Batch caches, one a layer, of rows' unbatched ones; row order is kept."""
    layers = zip(*caches, strict=True)
    return [type(layer[0]).merge(list(layer)) for layer in layers]


def extend(caches: list[Any], others: list[Any]) -> None:
    """Append the rows of ``others`` to ``caches``, in place."""
    for cache, other in zip(caches, others, strict=True):
        before = getattr(cache, "keys", None)
        cache.extend(other)
        # An empty peer would widen the type of keys and values.
        if before is not None and cache.keys.dtype != before.dtype:
            cache.keys = cache.keys.astype(before.dtype)
            cache.values = cache.values.astype(before.dtype)

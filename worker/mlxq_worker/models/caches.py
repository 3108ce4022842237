"""From rows' own caches to a batch's, layer by layer."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxq_worker.models.quantised import merge


def extend(caches: list[Any], others: list[Any]) -> None:
    """Append the rows of ``others`` to ``caches``, in place."""
    for cache, other in zip(caches, others, strict=True):
        given = (getattr(cache, "keys", None), getattr(other, "keys", None))
        types = [keys.dtype for keys in given if isinstance(keys, mx.array)]
        cache.extend(other)
        # A row with nothing in its cache yet would widen the type of all keys and values.
        if types and cache.keys.dtype != types[0]:
            cache.keys, cache.values = cache.keys.astype(types[0]), cache.values.astype(types[0])


__all__ = ["extend", "merge"]

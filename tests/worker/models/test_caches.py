"""Rows' caches become a batch's, with nothing lost and no type widened."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import KVCache, RotatingKVCache

from mlxq_worker.models import caches

KINDS = {"full": KVCache, "sliding": lambda: RotatingKVCache(max_size=4)}


def filled(kind: str, tokens: int):
    """A row's cache after ``tokens`` tokens, keys [1, heads, tokens, size] of ones."""
    cache = KINDS[kind]()
    if tokens:
        ones = mx.ones((1, 2, tokens, 8), dtype=mx.bfloat16)
        cache.update_and_fetch(ones, ones)
    return cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("there", "newcomer"), [(3, 2), (0, 3), (3, 0), (0, 0), (9, 2), (2, 9)])
def test_extend_keeps_type_and_offsets(kind, there, newcomer):
    batch = caches.merge([[filled(kind, there)], [filled(kind, there)]])
    caches.extend(batch, caches.merge([[filled(kind, newcomer)]]))
    assert batch[0].offset.tolist() == [there, there, newcomer]
    if there or newcomer:
        assert batch[0].keys.dtype == batch[0].values.dtype == mx.bfloat16
    ones = mx.ones((3, 2, 1, 8), dtype=mx.bfloat16)
    keys, _ = batch[0].update_and_fetch(ones, ones)
    assert keys.dtype == mx.bfloat16


def test_rows_keep_their_order():
    rows = [filled("full", tokens) for tokens in (1, 4, 2)]
    [merged] = caches.merge([[row] for row in rows])
    assert merged.offset.tolist() == [1, 4, 2]
    assert merged.left_padding.tolist() == [3, 0, 2]

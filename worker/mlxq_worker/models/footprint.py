"""Bytes that rows' caches take, known from the shapes of a model's layers before its first row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import CacheList, KVCache

from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.quantised import Quantisation

_PROBE = (0, 1)
"""Two tokens: layers with a window take one token alone in another way."""


@dataclass(frozen=True)
class _Layer:
    """Bytes of one layer for one row: ``token`` for each token's keys and values, ``packed`` the
    same in a quantised batch, ``state`` for what does not grow. ``window``: most tokens kept."""

    token: int = 0
    packed: int = 0
    state: int = 0
    window: int | None = None
    step: int = 256


@dataclass(frozen=True)
class Load:
    """Some rows: ``count`` of them, the ``longest`` of so many tokens.

    ``exact`` and ``packed``: tokens in all, padding included, as they are and in quantised
    batches. ``filling``: tokens of each row in prefill, fed in slices of at most ``slice``.
    """

    count: int
    longest: int
    exact: int
    packed: int
    filling: Sequence[int]
    slice: int


class Footprint:
    """What caches take and will take. Exact for what is there, an upper bound for promises.

    A probe builds the graph of a forward pass, which tells all shapes; nothing is computed.
    """

    def __init__(self, adapter: Adapter, how: Quantisation | None = None) -> None:
        cache = adapter.make_cache()
        adapter.prefill_text(_PROBE, 0, cache)
        self._layers = [_measure(layer, how) for layer in _leaves(cache)]

    def filled(self, cache: Sequence[Any], tokens: int) -> int:
        """Bytes of a row's own cache after so many more tokens in one slice."""
        pairs = zip(_leaves(cache), self._layers, strict=True)
        return sum(_filled(layer, size, tokens) for layer, size in pairs)

    def growth(self, cache: Sequence[Any], rows: int) -> int:
        """Bytes by which a batch's caches are enlarged when one more token comes."""
        pairs = zip(_leaves(cache), self._layers, strict=True)
        return sum(_growth(layer, size, rows) for layer, size in pairs)

    def most(self, rows: Load) -> int:
        """Most bytes of rows, whether they are still in prefill or decode already."""
        total = 0
        for layer in self._layers:
            total += layer.state * rows.count
            if layer.window is None:
                total += layer.token * rows.exact + layer.packed * rows.packed
            else:
                # A slice comes on top of the window until the row decodes.
                above = sum(max(0, min(n - layer.window, rows.slice)) for n in rows.filling)
                total += layer.token * (rows.count * min(rows.longest, layer.window) + above)
        return total


def _leaves(cache: Sequence[Any]) -> Iterator[Any]:
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from _leaves(layer.caches)
        else:
            yield layer


def _measure(layer: Any, how: Quantisation | None) -> _Layer:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if not isinstance(keys, mx.array) or not isinstance(values, mx.array):
        return _Layer(state=int(layer.nbytes))
    token = (int(keys.nbytes) + int(values.nbytes)) // keys.shape[2]
    packed = token
    if how is not None and type(layer) is KVCache:
        packed = sum(_packed(array, how) for array in (keys, values))
    window = getattr(layer, "max_size", None)
    return _Layer(token, packed, window=window, step=getattr(layer, "step", 256))


def _packed(array: mx.array, how: Quantisation) -> int:
    _, heads, _, size = array.shape
    scales = 2 * (size // how.group_size) * array.itemsize
    return int(heads) * (size * how.bits // 32 * 4 + scales)


def _filled(layer: Any, size: _Layer, tokens: int) -> int:
    if not size.token:
        return int(layer.nbytes) or size.state
    room = 0 if layer.keys is None else int(layer.keys.shape[2])
    if tokens <= 0:
        return room * size.token
    if size.window is None:
        return size.token * _paged(room, layer.offset, tokens, size.step)
    if tokens == 1:
        more = min(size.step, size.window - layer.offset) if layer.offset >= room else 0
        return size.token * (min(room, size.window) if room >= size.window else room + more)
    held = room if layer._idx == room or layer._idx < layer.offset else int(layer._idx)
    return size.token * (min(held, size.window - 1) + tokens)


def _paged(room: int, used: int, tokens: int, step: int) -> int:
    """Tokens of room after ``tokens`` more: what is there, or cut to what is used and paged."""
    if used + tokens <= room:
        return room
    return (used if used % step else room) + -(-tokens // step) * step


def _growth(layer: Any, size: _Layer, rows: int) -> int:
    if not size.token:
        return 0 if layer.nbytes else size.state * rows
    keys = layer.keys
    if keys is None:
        packed = hasattr(layer, "bits")
        first = size.step if size.window is None else min(size.step, size.window)
        return (size.packed if packed else size.token) * rows * first
    room = int((keys[0] if isinstance(keys, tuple) else keys).shape[-2])
    if size.window is None:
        more = size.step if layer._idx >= room else 0
    else:
        full = layer._offset >= room and room < size.window
        more = min(size.step, size.window - layer._offset) if full else 0
    return int(layer.nbytes) * more // room


__all__ = ["Footprint", "Load"]

"""Keys and values of decoding rows in fewer bits: more rows fit, at some cost in exactness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.models.cache import BatchQuantizedKVCache, KVCache

from mlxq_schemas.errors import ConfigError
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame
from mlxq_worker.models.reading import read

_TOLERANCE = 0.02
"""Greatest difference of logits in a batch from those alone, as a share of their spread."""


@dataclass(frozen=True)
class Quantisation:
    """``bits`` (2, 3, 4, 6 or 8) a value, one scale for ``group_size`` (32, 64 or 128) of them.

    Rows of fewer than ``start`` tokens when they begin to decode stay as they are.
    """

    bits: int
    group_size: int = 64
    start: int = 0

    @property
    def label(self) -> str:
        """``kv8g64``, ``kv4g32s512``: texts differ where this does."""
        return f"kv{self.bits}g{self.group_size}" + (f"s{self.start}" if self.start else "")


def merge(caches: Sequence[list[Any]], how: Quantisation | None = None) -> list[Any]:
    """Batch caches, one a layer, of rows' unbatched ones; row order is kept.

    ``how``: layers that keep all tokens are quantised.
    """
    return [
        QuantisedBatch.of(layer, how)
        if how is not None and type(layer[0]) is KVCache
        else type(layer[0]).merge(list(layer))
        for layer in zip(*caches, strict=True)
    ]


class QuantisedBatch(BatchQuantizedKVCache):
    """A batch's layer, made of rows' own full-precision ones; rows are padded on the left."""

    @classmethod
    def of(cls, rows: Sequence[KVCache], how: Quantisation) -> QuantisedBatch:
        longest = max(row.offset for row in rows)
        padding = [longest - row.offset for row in rows]
        batch = cls(padding, how.group_size, how.bits)
        batch.offset = mx.array([row.offset for row in rows])
        batch._idx = longest
        if longest:
            batch.keys = _joined([(row.keys, row.offset) for row in rows], longest, how)
            batch.values = _joined([(row.values, row.offset) for row in rows], longest, how)
        return batch

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, padding included."""
        parts = [*(self.keys or ()), *(self.values or ())]
        return sum(int(part.nbytes) for part in parts)


def _joined(
    rows: Sequence[tuple[mx.array | None, int]], longest: int, how: Quantisation
) -> tuple[mx.array, ...]:
    """Quantised [rows, heads, longest, ...] of each row's [1, heads, tokens, size]; zeros pad."""
    model = next(array for array, tokens in rows if array is not None and tokens)
    padded: list[mx.array] = []
    for array, tokens in rows:
        own = model[..., :0, :] if array is None else array[..., :tokens, :]
        padded.append(mx.pad(own, [(0, 0), (0, 0), (longest - tokens, 0), (0, 0)]))
    return tuple(mx.quantize(mx.concatenate(padded), group_size=how.group_size, bits=how.bits))


def check(adapter: Adapter, how: Quantisation) -> None:
    """Refuse a model whose attention cannot read quantised caches, or reads the padding too.

    Raises :class:`ConfigError`.
    """
    try:
        fault = _compare(adapter, how)
    except Exception as error:  # noqa: BLE001 - whatever a model raises at what it cannot read
        blame(error)
        fault = str(error)
    if fault:
        family = getattr(adapter.model.config, "model_type", "this family")
        raise ConfigError(
            f"{family} cannot decode with keys and values in {how.bits} bits, groups of "
            f"{how.group_size} ({fault}): leave --kv-bits out, or give another --kv-group-size"
        )


def _compare(adapter: Adapter, how: Quantisation) -> str | None:
    """What differs between rows alone and together; None: nothing."""
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12]]
    rows = [[prompts[0]], [prompts[1]], prompts]
    first, second, together = (_logits(adapter, how, some) for some in rows)
    alone = np.concatenate([first, second])
    if np.abs(alone - together).max() > _TOLERANCE * np.ptp(alone):
        return "rows of unlike length disturb each other"
    return None


def _logits(
    adapter: Adapter, how: Quantisation, prompts: list[list[int]]
) -> npt.NDArray[np.float32]:
    own = [adapter.make_cache() for _ in prompts]
    for prompt, cache in zip(prompts, own, strict=True):
        adapter.prefill_text(prompt, 0, cache)
    batch = merge(own, how)
    if not any(isinstance(layer, QuantisedBatch) for layer in batch):
        raise ValueError("no layer keeps keys and values of all tokens")
    places = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    logits = adapter.decode(mx.array([13] * len(prompts)), places, batch)
    return read(logits.astype(mx.float32))[0]

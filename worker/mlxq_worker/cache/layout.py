"""A row's unbatched caches, cut into blocks and put together again.

Layers that keep one key and value a token are cut anywhere. Others (sliding windows, recurrent
states) hold what they hold at one moment only: their states at the end of a block may be kept
beside it, and a prefix can be taken up where they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import KVCache

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK


class Layout:
    """The layers of one model; ``make_cache`` gives an empty unbatched cache.

    ``name`` tells layouts apart: a block of one is nothing to another.
    """

    def __init__(self, make_cache: Callable[[], list[Any]]) -> None:
        self._make_cache = make_cache
        layers = make_cache()
        self._plain = [n for n, layer in enumerate(layers) if type(layer) is KVCache]
        self._moving = [n for n, layer in enumerate(layers) if type(layer) is not KVCache]
        self.name = ",".join([str(BLOCK), *(_describe(layer) for layer in layers)])

    @property
    def moving(self) -> bool:
        """True if some layers cannot be cut: slices must then end where blocks do."""
        return bool(self._moving)

    def empty(self) -> list[Any]:
        """A row's own cache before its first token."""
        return self._make_cache()

    def moving_layers(self, cache: Sequence[Any]) -> list[Any]:
        """Those layers of a row's own cache that cannot be cut."""
        return [cache[n] for n in self._moving]

    def cut(self, key: bytes, cache: list[Any], end: int) -> Block:
        """The block of the tokens that end at ``end``; lazy."""
        layers = [cache[n] for n in self._plain]
        slices = [
            a[..., end - BLOCK : end, :] for layer in layers for a in (layer.keys, layer.values)
        ]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for n, array in enumerate(slices):
            groups.setdefault((*array.shape, array.dtype), []).append(n)
        arrays = [mx.stack([slices[n] for n in group]) for group in groups.values()]
        return Block(key, tuple(arrays), json.dumps(list(groups.values())).encode())

    def moment(self, key: bytes, cache: list[Any]) -> Block:
        """What the moving layers hold now; lazy."""
        arrays: list[mx.array] = []
        states = [_pack([cache[n].state, cache[n].meta_state], arrays) for n in self._moving]
        return Block(key, tuple(arrays), json.dumps(states).encode())

    @staticmethod
    def standing(cache: Sequence[Any]) -> int | None:
        """Tokens in the cache, by the first layer that counts them."""
        return next((layer.offset for layer in cache if hasattr(layer, "offset")), None)

    def restore(self, blocks: Sequence[Block], moment: Block | None) -> list[Any]:
        """A row's own cache after the tokens of ``blocks``; lazy. It shares no object with them."""
        cache = self.empty()
        slices: dict[int, mx.array] = {}
        for g, group in enumerate(json.loads(blocks[-1].meta)):
            joined = mx.concatenate([block.arrays[g] for block in blocks], axis=-2)
            slices |= {n: joined[place] for place, n in enumerate(group)}
        for place, n in enumerate(self._plain):
            cache[n].state = (slices[2 * place], slices[2 * place + 1])
        if moment is not None:
            self.restore_moment(cache, moment)
        return cache

    def restore_moment(self, cache: list[Any], moment: Block) -> None:
        """Put what the moving layers held into a row's own cache; lazy."""
        for n, packed in zip(self._moving, json.loads(moment.meta), strict=True):
            cache[n].state, counters = _unpack(packed, moment.arrays)
            if counters:
                cache[n].meta_state = counters


def _describe(layer: Any) -> str:
    sizes = [str(getattr(layer, name)) for name in ("max_size", "keep") if hasattr(layer, name)]
    return ":".join([type(layer).__name__, *sizes])


def _pack(value: Any, arrays: list[mx.array]) -> Any:
    """``value`` as JSON, its arrays appended to ``arrays`` as copies and named by number."""
    if isinstance(value, mx.array):
        arrays.append(mx.contiguous(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, (list, tuple)):
        return [_pack(item, arrays) for item in value]
    return value


def _unpack(value: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(value, dict):
        return mx.contiguous(arrays[value["array"]])
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value

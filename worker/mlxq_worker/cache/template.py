"""What blocks of a model look like, so that others with the same names do no harm.

The bytes of a file may be whole, and yet be none that the model can take up: made by another
program, or by an error. They are found here, before a row relies on them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.host import KEY_BYTES, HostBlock
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.packing import Packing
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.prepared import Prepared

log = logging.getLogger(__name__)

_NO_KEY: Final = bytes(KEY_BYTES)
_GROWS: Final = -2
"""The axis of a window's keys and values that is as long as the window is full."""


class Misfit(Exception):
    """A block that the model cannot take up; says why."""


class Template:
    """Made when the first block comes from elsewhere, by feeding the model lazily: nothing is
    computed. Where that fails, only what is asked of every model is checked."""

    def __init__(self, adapter: Adapter, layout: Layout, packing: Packing | None = None) -> None:
        self._adapter = adapter
        self._layout = layout
        self._packing = packing
        self._made = False
        self._block: Block | None = None
        self._moment: Block | None = None
        self._embeds: mx.array | None = None

    def prefix(self, host: HostBlock) -> Block:
        """A block of a prefix, or of what the moving layers held; raises :class:`Misfit`."""
        self._make()
        block = self._unpacked(_from_host(host))
        if self._block is None or _like(block, self._block):
            return block
        if self._moment is None:
            raise Misfit("other arrays than this model's keys and values")
        try:
            states, own = json.loads(block.meta), json.loads(self._moment.meta)
            windows = self._windows(own)
            if _kinds(states) == _kinds(own) and _alike(block, self._moment, windows):
                cache = self._layout.empty()
                self._layout.restore_moment(cache, block)
                if all(map(_consistent, self._layout.moving_layers(cache))):
                    return block
        except Exception as error:
            raise Misfit(f"states that cannot be taken up: {error}") from error
        raise Misfit("other states than this model's")

    def prefix_bytes(self, on_disk: int) -> int:
        """The most bytes that a block of so many on disk takes in memory; 0 if there is none."""
        if self._packing is None or not on_disk:
            return on_disk
        self._make()
        return max(on_disk, self._block.nbytes if self._block else 4 * on_disk)

    def _unpacked(self, block: Block) -> Block:
        try:
            return self._packing.unpack(block) if self._packing else block
        except Exception as error:
            raise Misfit(f"packed keys and values that cannot be unpacked: {error}") from error

    def _windows(self, own: Any) -> list[list[int]]:
        """Numbers of the arrays of each layer that keeps a window: as long as it is full."""
        layers = self._layout.moving_layers(self._layout.empty())
        states = zip(own, layers, strict=True)
        return [list(_numbers(packed)) for packed, layer in states if hasattr(layer, "max_size")]

    def features(self, host: HostBlock) -> Block:
        """Features of a picture, or of all of a prompt; raises :class:`Misfit`."""
        self._make()
        block = _from_host(host)
        shapes = {tuple(array.shape) for array in block.arrays}
        if block.meta or len(block.arrays) != 1 + self._deepstack or len(shapes) != 1:
            raise Misfit("other arrays than this model's features")
        shape = shapes.pop()
        if len(shape) != 2 or any(array.dtype not in _FLOATS for array in block.arrays):
            raise Misfit("arrays that are no features")
        if self._embeds is not None and shape[1] != self._embeds.shape[-1]:
            raise Misfit(f"features of {shape[1]} values, not {self._embeds.shape[-1]}")
        return block

    @property
    def _deepstack(self) -> int:
        config = getattr(self._adapter.model.config, "vision_config", None)
        return len(getattr(config, "deepstack_visual_indexes", None) or ())

    def _make(self) -> None:
        if self._made:
            return
        self._made = True
        cache = self._layout.empty()
        try:
            embedded = self._adapter.embed(Prepared([0] * BLOCK))
            self._adapter.prefill([0] * BLOCK, 0, embedded, cache)
            block = self._layout.cut(_NO_KEY, cache, BLOCK)
            moment = self._layout.moment(_NO_KEY, cache) if self._layout.moving else None
        except Exception as error:  # noqa: BLE001 - whatever a model minds: it is a check only
            log.info("blocks from disk are not compared with the model's own: %s", error)
            return
        self._block, self._moment, self._embeds = block, moment, embedded.embeds


_FLOATS: Final = (mx.float32, mx.float16, mx.bfloat16)


def _from_host(host: HostBlock) -> Block:
    try:
        return Block.from_host(host)
    except Exception as error:
        raise Misfit(f"arrays that MLX does not take: {error}") from error


def _like(block: Block, own: Block) -> bool:
    return (
        block.meta == own.meta
        and len(block.arrays) == len(own.arrays)
        and all(
            a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(block.arrays, own.arrays, strict=True)
        )
    )


def _alike(block: Block, own: Block, windows: list[list[int]]) -> bool:
    """The same but for how full windows are, in which a layer's arrays agree."""
    if len(block.arrays) != len(own.arrays):
        return False
    shapes = [list(array.shape) for array in block.arrays]
    wanted = [list(array.shape) for array in own.arrays]
    for numbers in windows:
        full = {shapes[n][_GROWS] for n in numbers if len(shapes[n]) > 2}
        if len(full) > 1 or 0 in full:
            return False
        for n in numbers:
            wanted[n][_GROWS:-1] = full
    types = zip(block.arrays, own.arrays, strict=True)
    return shapes == wanted and all(a.dtype == b.dtype for a, b in types)


def _consistent(layer: Any) -> bool:
    """False for a window that holds other tokens than its counters say."""
    size = getattr(layer, "max_size", None)
    if size is None:
        return True
    held = layer.keys.shape[_GROWS]
    in_order = getattr(layer, "_idx", held) == held
    return held >= min(layer.offset, size) and (in_order or held == size)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        yield value["array"]
    for item in value if isinstance(value, list) else ():
        yield from _numbers(item)


def _kinds(value: Any) -> Any:
    """The structure of packed states: which arrays are where, and what kinds of counters."""
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, list):
        return [_kinds(item) for item in value]
    return type(value).__name__

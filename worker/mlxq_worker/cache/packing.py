"""Keys and values in 8 bits on disk: half the bytes or fewer, at some cost in exactness."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from mlxq_worker.cache.block import Block

_GROUPS: Final = (64, 32)
"""Values that share a scale, by preference; the last axis must be a multiple."""
_TYPES: Final = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Packing:
    """``bits`` a value. States of other layers, and pictures, stay as they are."""

    bits: int = 8

    @property
    def label(self) -> str:
        """``disk8``: texts differ where this does."""
        return f"disk{self.bits}"

    def pack(self, block: Block) -> Block:
        """A block of keys and values for the disk; lazy. Others come back as they are."""
        if not _is_keys_and_values(block) or not all(map(_group, block.arrays)):
            return block
        arrays: list[mx.array] = []
        types: list[str] = []
        for array in block.arrays:
            arrays += mx.quantize(array, group_size=_group(array), bits=self.bits)
            types.append(str(array.dtype).rsplit(".", maxsplit=1)[-1])
        meta = {"bits": self.bits, "types": types, "meta": block.meta.decode()}
        return Block(block.key, tuple(arrays), json.dumps(meta).encode())

    def unpack(self, block: Block) -> Block:
        """The block that was packed, nearly; lazy. Raises whatever its content makes of it."""
        if not block.meta.startswith(b'{"bits"'):
            return block
        meta: dict[str, Any] = json.loads(block.meta)
        if meta["bits"] != self.bits or len(block.arrays) != 3 * len(meta["types"]):
            raise ValueError("packed in another way")
        arrays: list[mx.array] = []
        for n, name in enumerate(meta["types"]):
            packed, scales, biases = block.arrays[3 * n : 3 * n + 3]
            group = packed.shape[-1] * 32 // self.bits // scales.shape[-1]
            whole = mx.dequantize(packed, scales, biases, group_size=group, bits=self.bits)
            arrays.append(whole.astype(_TYPES[name]))
        return Block(block.key, tuple(arrays), meta["meta"].encode())


def _group(array: mx.array) -> int:
    """Values that may share a scale; 0: none may."""
    fits = (group for group in _GROUPS if array.ndim > 1 and not array.shape[-1] % group)
    return next(fits, 0) if array.dtype in _TYPES.values() else 0


def _is_keys_and_values(block: Block) -> bool:
    """True if the block's meta is groups of numbers; states have counters and names of arrays."""
    groups = json.loads(block.meta or b"0")
    return (
        bool(block.arrays)
        and isinstance(groups, list)
        and all(
            isinstance(group, list) and all(isinstance(n, int) for n in group) for group in groups
        )
    )

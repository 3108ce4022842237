"""Cache state as plain bytes in host memory: what leaves MLX, and what goes back to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

KEY_BYTES: Final = 32

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("bool", "uint8", "int8"), 1),
        **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
        **dict.fromkeys(("uint32", "int32", "float32"), 4),
        **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    }
)
"""Bytes of one element, by MLX's name of the type."""


@dataclass(frozen=True, eq=False, slots=True)
class HostArray:
    """One array: ``data`` holds its bytes in C order, shape (n,), uint8, contiguous.

    Raises :class:`ValueError` where the bytes do not fit ``dtype`` (MLX's name) and ``shape``.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        size = array_bytes(self.dtype, self.shape)
        data = self.data
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError("data must be a contiguous array of bytes in one dimension")
        if len(data) != size:
            raise ValueError(f"{self.dtype}{list(self.shape)} has {size} bytes, not {len(data)}")

    @classmethod
    def copy_of(cls, array: npt.NDArray[Any], dtype: str | None = None) -> HostArray:
        """Own bytes of ``array``; ``dtype`` names a type that numpy lacks (bfloat16 as uint16)."""
        owned = np.array(array, order="C", copy=True)
        return cls(dtype or owned.dtype.name, owned.shape, owned.reshape(-1).view(np.uint8))

    def numpy(self) -> npt.NDArray[Any]:
        """The same bytes in their shape; bfloat16, which numpy lacks, as uint16."""
        carrier = "uint16" if self.dtype == "bfloat16" else self.dtype
        return self.data.view(np.dtype(carrier)).reshape(self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class HostBlock:
    """Arrays under one content address.

    ``key``: 32 bytes, a hash of all that the arrays depend on. ``meta``: a few opaque bytes.
    Who hands a block over must not change its bytes any more.
    """

    key: bytes
    arrays: tuple[HostArray, ...]
    meta: bytes = b""

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.key)}")

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays and of ``meta``."""
        return sum(len(array.data) for array in self.arrays) + len(self.meta)


def array_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array; raises :class:`ValueError` for an unknown type or a negative length."""
    if dtype not in ITEM_BYTES:
        raise ValueError(f"unknown type {dtype!r}")
    if any(length < 0 for length in shape):
        raise ValueError(f"negative length in {shape}")
    return math.prod(shape) * ITEM_BYTES[dtype]

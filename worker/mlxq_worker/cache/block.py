"""What caches hold: named arrays that nobody changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from mlxq_worker.cache.host import HostArray, HostBlock


@dataclass(frozen=True)
class Block:
    """Arrays under a name [32 bytes]; ``meta`` (JSON) says what they are to whoever made them.

    The arrays are this block's own: no view of a larger one, and no object that a running row
    may assign into.
    """

    key: bytes
    arrays: tuple[mx.array, ...]
    meta: bytes = b""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        size = sum(int(array.nbytes) for array in self.arrays)
        object.__setattr__(self, "nbytes", size + len(self.meta) + len(self.key))

    def to_host(self) -> HostBlock:
        """A copy of the bytes that any thread may use. Evaluates the arrays."""
        return HostBlock(self.key, tuple(_to_host(array) for array in self.arrays), self.meta)

    @classmethod
    def from_host(cls, host: HostBlock) -> Block:
        """The block of a host copy; in the engine thread."""
        return cls(host.key, tuple(_from_host(array) for array in host.arrays), host.meta)


def _to_host(array: mx.array) -> HostArray:
    name = str(array.dtype).rsplit(".", maxsplit=1)[-1]
    # numpy knows no bfloat16, so every type travels as its bytes
    data = np.array(mx.contiguous(array).reshape(-1).view(mx.uint8))
    return HostArray(name, tuple(array.shape), data)


def _from_host(host: HostArray) -> mx.array:
    return mx.array(host.data).view(getattr(mx, host.dtype)).reshape(host.shape)

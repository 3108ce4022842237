"""What caches hold: named arrays that nobody changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxq_worker.cache.host import HostArray, HostBlock
from mlxq_worker.models.reading import read


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
        # numpy knows no bfloat16, so every type travels as its bytes
        data = read(*(mx.contiguous(array).reshape(-1).view(mx.uint8) for array in self.arrays))
        pairs = zip(self.arrays, data, strict=True)
        return HostBlock(self.key, tuple(_host(array, part) for array, part in pairs), self.meta)

    @classmethod
    def from_host(cls, host: HostBlock) -> Block:
        """The block of a host copy; in the engine thread."""
        return cls(host.key, tuple(_from_host(array) for array in host.arrays), host.meta)


def _host(array: mx.array, data: npt.NDArray[np.uint8]) -> HostArray:
    name = str(array.dtype).rsplit(".", maxsplit=1)[-1]
    return HostArray(name, tuple(array.shape), data)


def _from_host(host: HostArray) -> mx.array:
    return mx.array(host.data).view(getattr(mx, host.dtype)).reshape(host.shape)

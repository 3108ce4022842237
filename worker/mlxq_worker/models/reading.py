"""How computed arrays are read."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt


def read(*arrays: mx.array) -> list[npt.NDArray[Any]]:
    """Wait for arrays and copy them to numpy.

    Raises what the device met. ``numpy.array`` alone would not: it asks by the buffer protocol
    first, drops whatever that raises, and asks again; but MLX raises such an error only once.
    """
    mx.eval(arrays)
    return [np.array(array) for array in arrays]

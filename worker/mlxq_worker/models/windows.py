"""Vision towers that attend within windows: no window may be empty."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn


class FullWindows:
    """Goes before a tower of mlx-vlm's Qwen2.5-VL, whose grid of windows is one row and one column
    too large where a side is a multiple of the window's.

    Attention over none of the patches gives nothing on the CPU, but ends the process on CUDA.
    """

    def get_window_index(self, grid_thw: mx.array) -> tuple[mx.array, mx.array]:
        """The order of merged patches, window by window, and where windows begin and end in it."""
        index, bounds = super().get_window_index(grid_thw)  # type: ignore[misc]
        return index, mx.array(np.unique(np.array(bounds)))


def leave_out_empty_windows(model: Any) -> None:
    """Put a tower with :class:`FullWindows` in the place of each that has windows of its own.

    It shares the old one's parts, so nothing is copied.
    """
    for parent in model.modules():
        for name, part in parent.children().items():
            if hasattr(part, "get_window_index") and not isinstance(part, FullWindows):
                setattr(parent, name, _with_full_windows(part))


def _with_full_windows(tower: nn.Module) -> nn.Module:
    kind = type(tower)
    mended: Any = type(kind.__name__, (FullWindows, kind), {"__doc__": kind.__doc__})
    same: nn.Module = mended.__new__(mended)
    vars(same).update(vars(tower))
    dict.update(same, tower)  # a module's own update() is for parameters
    return same

"""Weights in few bits, as mlx-vlm's own conversion writes them."""

from __future__ import annotations

from pathlib import Path

from mlx_vlm.convert import convert

GROUP = 32
"""Values that share a scale: tiny matrices have too few columns for more."""


def quantise(source: Path, folder: Path, bits: int) -> Path:
    """Write the model of ``source`` to ``folder``, its language model in so many ``bits``."""
    convert(str(source), str(folder), quantize=True, q_group_size=GROUP, q_bits=bits)
    return folder

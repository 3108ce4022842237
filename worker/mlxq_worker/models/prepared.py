"""A prompt on its way from preparation to the model. No MLX here: any thread may make one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Prepared:
    """A prompt ready for the model: everything that needs no MLX is done.

    ``ids``: prompt token ids, media placeholders expanded. ``arrays``: the processor's other
    outputs by name (``pixel_values`` float32, ``image_grid_thw`` int [images, 3], ...), or a list
    of them where pictures have different shapes and the model takes them one by one.
    ``media``: sha256 of each medium in order. ``images``: how many of them are images.
    ``stable``: so many tokens stay the same when the chat goes on; 0: not known.
    """

    ids: list[int]
    arrays: dict[str, Array | list[Array]] = field(default_factory=dict)
    media: tuple[str, ...] = ()
    images: int = 0
    stable: int = 0

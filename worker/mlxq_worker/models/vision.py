"""Pictures of several prompts in one call of the vision encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from mlxq_worker.models.prepared import Array, Prepared

_OF_TOKENS = frozenset({"mm_token_type_ids", "token_type_ids"})
"""Arrays about a prompt's tokens, not about its pictures."""

_Likeness: TypeAlias = tuple[tuple[str, str, object], ...]


@dataclass(frozen=True)
class Vision:
    """What the encoder gives for the pictures of one prompt, in order.

    ``features`` [media tokens, hidden] stand where the prompt has media tokens; ``deepstack``
    are more of that shape, one for each early layer that they are added to. ``features`` None:
    nobody needs them, since the prompt is in a cache beyond its last media token.
    """

    features: mx.array | None
    deepstack: tuple[mx.array, ...] = ()


def alike(prompts: Sequence[Prepared], axis: int) -> list[list[int]]:
    """Indices of prompts whose pictures may go into one call, call by call.

    Their arrays have the same names, types and shapes, but for the size along ``axis``. Pictures
    in a list, each of its own shape, go alone.
    """
    groups: dict[_Likeness | int, list[int]] = {}
    for n, prompt in enumerate(prompts):
        groups.setdefault(_likeness(prompt, axis) or n, []).append(n)
    return list(groups.values())


def _likeness(prompt: Prepared, axis: int) -> _Likeness | None:
    found: list[tuple[str, str, object]] = []
    for name, value in sorted(_pictures(prompt).items()):
        if isinstance(value, list):
            return None
        shape = list(value.shape)
        same = value.tobytes() if value.ndim <= axis else tuple(shape[:axis] + shape[axis + 1 :])
        found.append((name, str(value.dtype), same))
    return tuple(found)


def join(prompts: Sequence[Prepared], axis: int) -> Prepared:
    """One prompt of all tokens and pictures of prompts that are :func:`alike`."""
    ids = [token for prompt in prompts for token in prompt.ids]
    arrays: dict[str, Array | list[Array]] = _pictures(prompts[0])
    if len(prompts) > 1:
        for name, value in arrays.items():
            parts = [prompt.arrays[name] for prompt in prompts]
            if not isinstance(value, list) and value.ndim > axis:
                arrays[name] = np.concatenate(parts, axis=axis)
    return Prepared(ids, arrays, images=sum(prompt.images for prompt in prompts))


def _pictures(prompt: Prepared) -> dict[str, Array | list[Array]]:
    return {name: value for name, value in prompt.arrays.items() if name not in _OF_TOKENS}


def split(vision: Vision, counts: Sequence[int]) -> list[Vision]:
    """Each prompt's own part; ``counts`` are the prompts' media tokens."""
    features = vision.features
    if features is None:
        return [vision for _ in counts]
    ends = np.cumsum(counts).tolist()
    return [
        Vision(
            features[end - count : end],
            tuple(layer[end - count : end] for layer in vision.deepstack),
        )
        for count, end in zip(counts, ends, strict=True)
    ]

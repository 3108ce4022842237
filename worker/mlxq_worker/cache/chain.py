"""Names of prefixes: a hash chain over blocks of tokens, in which media count by their content.

Two prompts share a name exactly as far as they have the same tokens and the same media in the
same places, on the same weights. No MLX here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mlxq_worker.models.prepared import Prepared

BLOCK = 32
"""Tokens of a block: what is shared is cut to a multiple of it."""

TEXT = -1


def root(*parts: str) -> bytes:
    """Start of a chain: all that makes the same tokens give other keys and values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part};".encode())
    return digest.digest()


def chain(
    start: bytes, ids: Sequence[int], owners: npt.NDArray[np.int64], names: Sequence[bytes]
) -> list[bytes]:
    """One name [32 bytes] for each whole block of ``ids``, which says all before it too.

    ``owners`` [tokens at least as far as media go] is the medium of each token, or -1 for text;
    ``names`` are the media's content hashes.
    """
    keys: list[bytes] = []
    key = start
    whole = np.asarray(ids, dtype=np.int64)
    for at in range(0, len(ids) - len(ids) % BLOCK, BLOCK):
        digest = hashlib.sha256(key)
        digest.update(whole[at : at + BLOCK].tobytes())
        for owner in dict.fromkeys(owners[at : at + BLOCK].tolist()):
            if owner != TEXT:
                digest.update(names[owner])
        key = digest.digest()
        keys.append(key)
    return keys


def moment_key(key: bytes) -> bytes:
    """Name of what the moving layers hold at the end of the block ``key``."""
    return hashlib.sha256(b"moment" + key).digest()


def owners(
    prepared: Prepared, media_tokens: Collection[int]
) -> tuple[npt.NDArray[np.int64], list[bytes]]:
    """The medium of each prompt token (-1: text), and the name of each medium.

    Where runs of media tokens are not one for each medium (tiles, rows, media side by side),
    all media of the prompt count as one, which shares less and is never wrong.
    """
    names = _names(prepared)
    places = np.isin(np.asarray(prepared.ids), list(media_tokens))
    starts = places & ~np.concatenate([[False], places[:-1]])
    if int(starts.sum()) == len(names):
        return np.where(places, np.cumsum(starts) - 1, TEXT), names
    return np.where(places, 0, TEXT), [hashlib.sha256(b"".join(names)).digest()]


def _names(prepared: Prepared) -> list[bytes]:
    if len(prepared.media) == prepared.images:
        return [hashlib.sha256(name.encode()).digest() for name in prepared.media]
    digest = hashlib.sha256()
    for name, value in sorted(prepared.arrays.items()):
        for array in value if isinstance(value, list) else [value]:
            digest.update(f"{name}{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return [digest.digest()]

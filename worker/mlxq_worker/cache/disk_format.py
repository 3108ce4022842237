"""One block as one file.

::

    magic 8 | version 4 | header bytes 4 | file bytes 8 | xxh3_128 of all the rest 16
    header: msgpack {layout, key, meta, arrays: [[dtype, [lengths]], ...]}
    the arrays' bytes, each from a multiple of 64 on, zeros between

Numbers are little-endian. Nothing of a file is believed before its checksum is right.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import xxhash

from mlxq_worker.cache.disk_trust import Trust
from mlxq_worker.cache.host import HostArray, HostBlock, array_bytes

MAGIC: Final = b"\x89mlxqKV\n"
VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIIQ16s")
_SUM: Final = slice(24, 40)
_ALIGN: Final = 64
_PIECE: Final = 64 << 20
_CHUNK: Final = 1 << 20
"""Bytes read and summed at a time: they are still in the processor's cache when summed."""


class Damage(StrEnum):
    """Why a file is no block for us."""

    CORRUPT = "corrupt"  # not the bytes that were written
    FUTURE = "future"  # of a newer version
    FOREIGN = "foreign"  # whole, but of another key or layout


class Damaged(Exception):
    """A file that is not the block it should be."""

    def __init__(self, kind: Damage, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Stored:
    """What a whole file says."""

    layout: str
    block: HostBlock


def encode(block: HostBlock, layout: str) -> list[memoryview]:
    """The parts of a block's file, in order; the arrays are views, not copies."""
    table = [[array.dtype, array.shape] for array in block.arrays]
    fields = {"layout": layout, "key": block.key, "meta": block.meta, "arrays": table}
    header = bytes(msgpack.packb(fields) or b"")
    parts = [memoryview(header)]
    end = _PREFIX.size + len(header)
    for array in block.arrays:
        parts += [memoryview(bytes(-end % _ALIGN)), array.data.data]
        end += -end % _ALIGN + len(array.data)
    front = _PREFIX.pack(MAGIC, VERSION, len(header), end, bytes(16))[: _SUM.start]
    total = xxhash.xxh3_128(front)
    for part in parts:
        total.update(part)
    return [memoryview(front + total.digest()), *parts]


class Space:
    """Memory for a run of files: one large piece costs the system less than many small ones.

    ``expected``: bytes of the files to come, as far as is known.
    """

    def __init__(self, expected: int = 0) -> None:
        self._expected = expected
        self._left = np.empty(0, np.uint8)

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """``size`` bytes of any content, from a multiple of 64 on in their piece."""
        if size > len(self._left):
            self._left = np.empty(max(size, min(self._expected, _PIECE)), np.uint8)
        taken, self._left = self._left[:size], self._left[size + -size % _ALIGN :]
        self._expected -= size + -size % _ALIGN
        return taken


def read(
    path: Path, space: Space, trust: Trust | None = None, *, folder_fd: int | None = None
) -> Stored:
    """Read and check a file; its arrays are read-only views into ``space``.

    ``trust``: whose files are believed (None: this user's own); ``folder_fd``: its folder, open.
    Raises :class:`OSError` (:class:`NotTrusted` for a file that others may have written), or
    :class:`Damaged` for one that is not what was written.
    """
    # Neither a link nor a pipe in a file's place can lead or hold us anywhere.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path if folder_fd is None else path.name, flags, dir_fd=folder_fd)
    try:
        found = os.fstat(fd)
        (trust or Trust()).check_file(path, found)
        with FileIO(fd, closefd=False) as file:
            raw, header_bytes = _checked(file, found.st_size, space)
    finally:
        os.close(fd)
    raw.flags.writeable = False
    return _parse(raw, header_bytes)


def _checked(file: FileIO, size: int, space: Space) -> tuple[npt.NDArray[np.uint8], int]:
    """All bytes of a file whose checksum is right, and the length of its header."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise Damaged(Damage.CORRUPT, "shorter than any block")
    magic, version, header_bytes, file_bytes, digest = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Damaged(Damage.CORRUPT, "not a cache file")
    if version > VERSION:
        raise Damaged(Damage.FUTURE, f"version {version}, this program knows {VERSION}")
    if version != VERSION or file_bytes != size:
        raise Damaged(Damage.CORRUPT, f"{size} bytes, {file_bytes} expected")
    if header_bytes > file_bytes - _PREFIX.size:
        raise Damaged(Damage.CORRUPT, "header longer than the file")
    raw = space.take(file_bytes)
    raw[: len(prefix)] = np.frombuffer(prefix, np.uint8)
    total = xxhash.xxh3_128(prefix[: _SUM.start])
    view = raw.data
    start = len(prefix)
    while start < file_bytes:
        count = file.readinto(view[start : start + _CHUNK])
        if not count:
            raise Damaged(Damage.CORRUPT, "cut while it was read")
        total.update(view[start : start + count])
        start += count
    if total.digest() != digest:
        raise Damaged(Damage.CORRUPT, "wrong checksum")
    return raw, header_bytes


def _parse(raw: npt.NDArray[np.uint8], header_bytes: int) -> Stored:
    """The block in bytes whose checksum is right (so a fault here is another program's)."""
    end = _PREFIX.size + header_bytes
    try:
        header: dict[str, Any] = msgpack.unpackb(raw[_PREFIX.size : end].tobytes())
        table = [(str(dtype), tuple(map(int, shape))) for dtype, shape in header["arrays"]]
        arrays = tuple(
            HostArray(dtype, shape, raw[place])
            for (dtype, shape), place in zip(table, _places(table, end), strict=True)
        )
        block = HostBlock(bytes(header["key"]), arrays, bytes(header["meta"]))
        return Stored(str(header["layout"]), block)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise Damaged(Damage.CORRUPT, f"header not understood: {error}") from error


def _places(table: Sequence[tuple[str, tuple[int, ...]]], end: int) -> Iterator[slice]:
    for dtype, shape in table:
        start = end + -end % _ALIGN
        end = start + array_bytes(dtype, shape)
        yield slice(start, end)

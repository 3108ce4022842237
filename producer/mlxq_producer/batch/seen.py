"""Which custom ids a file has named so far, in sixteen bytes or so an id."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

_FIRST_SIZE: Final = 1024


class Seen:
    """A set of texts that keeps 64-bit hashes of them only, in an open-addressed table.

    Two different texts pass for the same with a chance of one in 10^5 among ten million.
    """

    def __init__(self) -> None:
        self._table = _empty(_FIRST_SIZE)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, text: str) -> bool:
        """Add a text; returns whether it is new."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        new = _put(self._table, int.from_bytes(digest, "little") or 1)
        self._count += new
        if 2 * self._count > len(self._table):
            self._grow()
        return new

    def _grow(self) -> None:
        table = _empty(2 * len(self._table))
        for value in self._table:
            if value:
                _put(table, value)
        self._table = table


def _empty(size: int) -> array[int]:
    return array("Q", bytes(8 * size))


def _put(table: array[int], value: int) -> bool:
    """Put a value into its place, 0 being an empty one; returns whether it was not there."""
    mask = len(table) - 1
    place = value & mask
    while table[place]:
        if table[place] == value:
            return False
        place = (place + 1) & mask
    table[place] = value
    return True

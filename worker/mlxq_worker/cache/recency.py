"""Which names leave first when room is short. No arrays here: names and sizes alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

_PROVEN_SHARE: Final = 0.75
"""How much of the room belongs to what has been of use; the rest is for what may yet be."""


class Recency:
    """Names by last use, in two segments: what was stored only, and what was used again since.

    The first leaves first, so that a long prompt which nobody repeats does not drive out what many
    share. The second keeps to its share of ``max_bytes``: what was used longest ago goes back to
    the first. What is held stays.
    """

    def __init__(self, max_bytes: int) -> None:
        self._share = int(max_bytes * _PROVEN_SHARE)
        self._fresh: OrderedDict[bytes, int] = OrderedDict()
        self._proven: OrderedDict[bytes, int] = OrderedDict()
        self._proven_bytes = 0
        self._held: Counter[bytes] = Counter()
        self.nbytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._fresh or key in self._proven

    def add(self, key: bytes, size: int) -> None:
        """A name that is not here yet."""
        self._fresh[key] = size
        self.nbytes += size

    def touch(self, run: Sequence[bytes]) -> None:
        """A run of names is seen now. Its last is the first to leave: it is of no use without
        those before it."""
        for key in reversed(run):
            if key in self._fresh:
                self._fresh.move_to_end(key)
            elif key in self._proven:
                self._proven.move_to_end(key)

    def use(self, run: Sequence[bytes]) -> None:
        """A run of names is of use now."""
        for key in reversed(run):
            size = self._fresh.pop(key, None)
            if size is not None:
                self._proven[key] = size
                self._proven_bytes += size
            elif key in self._proven:
                self._proven.move_to_end(key)
        while self._proven_bytes > self._share:
            key, size = self._proven.popitem(last=False)
            self._proven_bytes -= size
            self._fresh[key] = size

    def drop(self, key: bytes) -> None:
        """A name is here no more."""
        size = self._fresh.pop(key, None)
        if size is None:
            size = self._proven.pop(key)
            self._proven_bytes -= size
        self.nbytes -= size

    def first(self) -> bytes | None:
        """The name that leaves next; None: all are held."""
        names = (key for segment in (self._fresh, self._proven) for key in segment)
        return next((key for key in names if key not in self._held), None)

    def hold(self, run: Sequence[bytes]) -> None:
        """A run of names, here or to come, is to stay until :meth:`release`. Counts."""
        self._held.update(run)

    def release(self, run: Sequence[bytes]) -> None:
        """End one hold."""
        self._held.subtract(run)
        for key in run:
            if self._held[key] <= 0:
                del self._held[key]

    def displaceable(self, chain: Collection[bytes]) -> int:
        """Bytes that can go without a loss to ``chain``, or to what is held."""
        names = {*chain, *self._held}
        kept = sum(self._fresh.get(key, 0) + self._proven.get(key, 0) for key in names)
        return self.nbytes - kept

    def spare(self, chain: Collection[bytes]) -> int:
        """Bytes that can go without a loss to ``chain``, to what has been of use, or is held."""
        kept = sum(self._fresh.get(key, 0) for key in {*chain, *self._held})
        return self.nbytes - self._proven_bytes - kept

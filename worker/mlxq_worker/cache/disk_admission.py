"""Which blocks are worth a place on disk, by when they were seen."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_SIGHTINGS: Final = 1 << 16
"""Keys whose sightings are remembered."""


@dataclass(slots=True)
class _Seen:
    count: int
    last: int
    before: int


class Admission:
    """Sightings of blocks that are not on disk. No lock: the caller has one.

    ``admit_at``: a block is worth writing from so many sightings on, counted anew once it has
    been written: so a byte is written for ``admit_at`` that were of use. ``opened``: when this
    began, in nanoseconds since 1970.
    """

    def __init__(self, admit_at: int, opened: int) -> None:
        self._admit_at = admit_at
        self._opened = opened
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    def see(self, key: bytes, now: int, *, shared: bool) -> bool:
        """Count a sighting; True if there were enough, or the block is known to be ``shared``."""
        seen = self._seen.pop(key, None)
        if seen is None:
            seen = _Seen(0, self._opened, self._opened)
        seen.count, seen.before, seen.last = seen.count + 1, seen.last, now
        self._seen[key] = seen
        if len(self._seen) > _SIGHTINGS:
            self._seen.popitem(last=False)
        return shared or seen.count >= self._admit_at

    def before(self, key: bytes) -> int | None:
        """When a block was seen before it was seen last, in nanoseconds since 1970.

        What was of use since is of use more often than this block, and is not to leave for it: a
        job that is larger than the folder would evict its own beginning, and jobs in turn each
        other's. None: nobody has looked, so that any may leave.
        """
        seen = self._seen.get(key)
        return seen.before if seen else None

    def written(self, key: bytes) -> None:
        """Forget a block's sightings: they are paid."""
        self._seen.pop(key, None)

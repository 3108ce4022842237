"""What all workers on a cache folder share: bytes written in the last day, bytes that are there.

Both are read and changed under the folder's lock, and outlive restarts.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Final

import xxhash

MAGIC: Final = b"mlxqLDG2"
HOUR: Final = 3600
UNKNOWN: Final = -1
_FAMILY: Final = 7
"""Bytes of the magic number that ledgers of all versions begin with."""
_HOURS: Final = 25
"""The running hour and the 24 before it: no 24 hours hold more than what is counted here."""
_FIELDS: Final = struct.Struct(f"<8sQ{_HOURS}Qq")
_SUM_BYTES: Final = 16


@dataclass
class Ledger:
    """``written[n]``: bytes written in the hour ``hour - n``, hours counted from 1970.

    ``total``: bytes of all files in the folder, never less than there are: it grows before a
    file is made and shrinks after one is removed. :data:`UNKNOWN`: it must be measured.
    """

    hour: int = 0
    written: list[int] = field(default_factory=lambda: [0] * _HOURS)
    total: int = UNKNOWN

    @classmethod
    def read(cls, fd: int) -> Ledger:
        """What the file says; an empty or damaged one says nothing was written."""
        raw = os.pread(fd, _FIELDS.size + _SUM_BYTES, 0)
        fields, digest = raw[: _FIELDS.size], raw[_FIELDS.size :]
        if not raw.startswith(MAGIC) or xxhash.xxh3_128_digest(fields) != digest:
            return cls()
        _, hour, *written, total = _FIELDS.unpack(fields)
        return cls(hour, written, total)

    def write(self, fd: int) -> None:
        """Store it in place: so few bytes in one call are there whole, or not at all."""
        fields = _FIELDS.pack(MAGIC, self.hour, *self.written, self.total)
        os.pwrite(fd, fields + xxhash.xxh3_128_digest(fields), 0)

    def charge(self, now: float, size: int) -> None:
        """Count ``size`` bytes as written at ``now`` (seconds since 1970)."""
        self._advance(now)
        self.written[0] += size

    def last_day(self, now: float) -> int:
        """Bytes written in the 24 hours before ``now``, or a little more."""
        self._advance(now)
        return sum(self.written)

    def grow(self, size: int) -> None:
        """Files of ``size`` bytes more are there, or less if it is negative."""
        if self.total != UNKNOWN:
            self.total = max(0, self.total + size)

    def _advance(self, now: float) -> None:
        """Let hours pass. Hours ahead of the clock are taken for the running one: what was
        written then, by a clock that was wrong, is forgotten a day from now at the latest."""
        running = int(now // HOUR)
        passed = max(0, running - self.hour)
        self.written = ([0] * min(passed, _HOURS) + self.written)[:_HOURS]
        self.hour = running


def is_ledger(raw: bytes) -> bool:
    """True if a file that begins with ``raw`` is a ledger, of any version."""
    return raw.startswith(MAGIC[:_FAMILY])

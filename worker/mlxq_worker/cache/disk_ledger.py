"""How many bytes were written to a cache folder in the last day, over all workers and restarts."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Final

import xxhash

MAGIC: Final = b"mlxqLDG1"
HOUR: Final = 3600
_HOURS: Final = 25
"""The running hour and the 24 before it: no 24 hours hold more than what is counted here."""
_FIELDS: Final = struct.Struct(f"<8sQ{_HOURS}Q")
_SUM_BYTES: Final = 16


@dataclass
class Ledger:
    """``written[n]``: bytes written in the hour ``hour - n``, hours counted from 1970."""

    hour: int = 0
    written: list[int] = field(default_factory=lambda: [0] * _HOURS)

    @classmethod
    def read(cls, fd: int) -> Ledger:
        """What the file says; an empty or damaged one says nothing was written."""
        raw = os.pread(fd, _FIELDS.size + _SUM_BYTES, 0)
        fields, digest = raw[: _FIELDS.size], raw[_FIELDS.size :]
        if xxhash.xxh3_128_digest(fields) != digest:
            return cls()
        _, hour, *written = _FIELDS.unpack(fields)
        return cls(hour, written)

    def write(self, fd: int) -> None:
        """Store it in place: so few bytes in one call are there whole, or not at all."""
        fields = _FIELDS.pack(MAGIC, self.hour, *self.written)
        os.pwrite(fd, fields + xxhash.xxh3_128_digest(fields), 0)

    def charge(self, now: float, size: int) -> None:
        """Count ``size`` bytes as written at ``now`` (seconds since 1970)."""
        self._advance(now)
        self.written[0] += size

    def last_day(self, now: float) -> int:
        """Bytes written in the 24 hours before ``now``, or a little more."""
        self._advance(now)
        return sum(self.written)

    def _advance(self, now: float) -> None:
        """Let hours pass; a clock set back changes nothing until it has caught up."""
        passed = max(0, int(now // HOUR) - self.hour)
        self.written = ([0] * min(passed, _HOURS) + self.written)[:_HOURS]
        self.hour += passed


def is_ledger(raw: bytes) -> bool:
    """True if a file that begins with ``raw`` is a ledger."""
    return raw.startswith(MAGIC)

"""Which files are pictures, by their names; and a count of those that are none."""

from __future__ import annotations

import textwrap
from pathlib import PurePath
from typing import Final

PICTURES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif"),
        *(".tif", ".tiff", ".bmp", ".dib", ".avif", ".avifs", ".ico", ".psd"),
        *(".jp2", ".j2k", ".jpc", ".jpf", ".jpx", ".j2c", ".tga", ".icb", ".vda", ".vst"),
        *(".pcx", ".ppm", ".pgm", ".pbm", ".pnm", ".sgi", ".rgb", ".rgba", ".bw", ".ras"),
    }
)
"""Suffixes, in small letters, of the formats that a worker decodes. Told here alone."""

TEXTS: Final = frozenset({".txt", ".caption", ".json"})
"""What a caption beside a picture may be called."""

NOISE: Final = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
"""What systems leave behind, besides names that begin with a dot."""

MISSED: Final = frozenset(
    {
        *(".heic", ".heif", ".hif", ".jxl", ".svg", ".eps", ".ai", ".pdf", ".psb", ".xcf", ".exr"),
        *(".hdr", ".dds", ".qoi", ".icns", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf"),
        *(".rw2", ".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm"),
    }
)
"""Of the suffixes that are passed over those that a user may have meant: they are told first."""

_KINDS: Final = 1000
"""Kinds that are counted apart; there may be as many suffixes as files."""
_SHOWN: Final = 12
_LONGEST: Final = 30


def is_picture(name: str) -> bool:
    """Whether a file is called like a picture; ``name`` may have folders before it."""
    return suffix_of(name) in PICTURES


def suffix_of(name: str) -> str:
    """A name's suffix in small letters, with its dot; empty if it has none."""
    return PurePath(name).suffix.lower()


def is_hidden(name: str) -> bool:
    """Whether a file's own name is one that nobody would miss."""
    return name.startswith(".") or name.lower() in NOISE


class PassedOver(dict[str, int]):
    """How many files were found and not taken, by suffix (or what else they have in common)."""

    def add(self, kind: str) -> None:
        """Count one."""
        if not kind.isprintable() or len(kind) > _LONGEST or not kind:
            kind = "without a suffix"
        kind = kind if kind in self or len(self) < _KINDS else "of other kinds"
        self[kind] = self.get(kind, 0) + 1

    def total(self) -> int:
        """How many of all kinds."""
        return sum(self.values())

    def listed(self) -> str:
        """As in ``3 .heic, 1 .md``: what may be missed first, then the most frequent."""
        shown = sorted(self.items(), key=lambda pair: (pair[0] not in MISSED, -pair[1], pair[0]))
        parts = [f"{number:,} {kind}" for kind, number in shown[:_SHOWN]]
        if rest := shown[_SHOWN:]:
            parts.append(f"{sum(number for _, number in rest):,} of {len(rest)} other kinds")
        return ", ".join(parts)

    def told(self, width: int = 80) -> str:
        """What a user is told, in lines of so many columns at most."""
        return textwrap.fill(
            f"passed over, no pictures that mlxq reads: {self.listed()}",
            width=width,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )

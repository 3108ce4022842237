"""What a worker lets in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class MediaPolicy:
    """Limits on media, the same for every way they arrive.

    ``roots``: folders from which files may be read; none by default. ``allow_http``: whether to
    download at all. ``allow_private_hosts``: whether loopback, private, link-local and metadata
    addresses may be asked. ``max_bytes``: of one medium, as it arrives. ``max_pixels``: width x
    height of an image. ``min_side``: pixels. ``timeout``: seconds for one download, redirects
    and all.
    """

    roots: tuple[Path, ...] = ()
    allow_http: bool = True
    allow_private_hosts: bool = False
    max_bytes: int = 64 * MIB
    max_pixels: int = 100_000_000
    min_side: int = 4
    timeout: float = 20.0
    max_redirects: int = 3

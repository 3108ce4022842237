"""The pictures of a folder, and what else is in it."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from mlxq_producer.pipeline.locks import STATE_FOLDER
from mlxq_producer.pipeline.pictures import TEXTS, is_hidden, is_picture, suffix_of

NO_ENTRY: Final = "folders that cannot be read"

Passed = Callable[[Path, str], None]
"""Hears of each file that is passed over, and of its kind: its suffix, or :data:`NO_ENTRY`."""

_SHARDS: Final = re.compile(r"%0?\d*d")


def walk(folder: Path, passed: Passed = lambda _path, _kind: None) -> Iterator[Path]:
    """Pictures of a folder and its subfolders, sorted; each folder once, whatever links say.

    ``passed`` hears of the other files, but not of hidden ones, of captions, nor of outputs.
    """
    visited: set[tuple[int, int]] = set()
    pending = [(folder, False)]
    while pending:
        here, captioned = pending.pop()
        try:
            status = here.stat()
            names = sorted(os.listdir(here))  # noqa: PTH208 - names only, a folder may be large
        except OSError:
            if here is folder:
                raise
            passed(here, NO_ENTRY)
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        ours = _Ours.of(here, names, captioned=captioned)
        below: list[tuple[Path, bool]] = []
        for name in names:
            if is_hidden(name):
                continue
            path = here / name
            if is_picture(name) and not path.is_dir():
                yield path
            elif path.is_dir():
                below.append((path, ours.captioned))
            elif name not in ours:
                passed(path, suffix_of(name))
        pending += reversed(below)


class Captions:
    """The files that are called like the caption of a picture beside them."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._names: list[str] = []

    def __contains__(self, path: Path) -> bool:
        if suffix_of(path.name) not in TEXTS:
            return False
        if path.parent != self._folder:  # kept: files come folder by folder
            try:
                self._names = sorted(os.listdir(path.parent))  # noqa: PTH208 - names only
            except OSError:
                self._names = []
            self._folder = path.parent
        return _has_picture(self._names, path.name)


@dataclass(frozen=True)
class _Ours:
    """Which files of a folder come from us: captions, and outputs of earlier runs and of this.

    ``names`` are sorted. ``captioned``: sidecars of a run are in this folder, or below it.
    """

    names: Sequence[str]
    outputs: re.Pattern[str] | None
    captioned: bool

    @classmethod
    def of(cls, folder: Path, names: Sequence[str], *, captioned: bool) -> _Ours:
        """What the folder's own state folder says."""
        try:
            state = os.listdir(folder / STATE_FOLDER)  # noqa: PTH208 - names only
        except OSError:
            return cls(names, None, captioned)
        outputs = [name.removesuffix(".lock") for name in state if name.endswith(".lock")]
        patterns = [_SHARDS.sub(r"\\d+", re.escape(name)) for name in outputs]
        return cls(names, re.compile("|".join(patterns)), captioned or "captions" in outputs)

    def __contains__(self, name: str) -> bool:
        if self.outputs is not None and self.outputs.fullmatch(name):
            return True
        return suffix_of(name) in TEXTS and (self.captioned or _has_picture(self.names, name))


def _has_picture(names: Sequence[str], caption: str) -> bool:
    """Whether ``a.png`` is among the sorted names, for ``a.txt`` and for ``a.png.txt``."""
    stem = PurePath(caption).stem
    at = bisect_left(names, stem)
    if is_picture(stem) and at < len(names) and names[at] == stem:
        return True
    at = bisect_left(names, f"{stem}.")
    while at < len(names) and names[at].startswith(f"{stem}."):
        if is_picture(names[at]) and PurePath(names[at]).stem == stem:
            return True
        at += 1
    return False

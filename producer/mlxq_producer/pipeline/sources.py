"""Where items come from: files, folders, globs, lists, manifests, archives, URLs, stdin.

Every source is read as it is needed, and none is held whole (a folder's own names aside).
"""

from __future__ import annotations

import glob
import json
import os
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from mlxq_producer.pipeline.archives import is_archive, read_tar
from mlxq_producer.pipeline.item import Item, printable
from mlxq_producer.pipeline.manifests import (
    TABLES,
    ManifestReader,
    dataset_parts,
    read_dataset,
    refused,
)
from mlxq_schemas.errors import BadMessage, ConfigError

PICTURES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
)
"""What a folder is searched for."""
LISTS: Final = frozenset({".txt", ".list"})
SHUFFLE_BUFFER: Final = 10_000
"""Items among which ``shuffle`` draws: memory stays bounded, order is mixed well enough."""

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Choice:
    """Which items of all: ``shard`` (i, n) with 1 <= i <= n, ``limit`` after it, ``shuffle``."""

    shard: tuple[int, int] | None = None
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """The chosen items."""
        if self.shard is not None:
            number, count = self.shard
            items = (i for i in items if zlib.crc32(i.name.encode()) % count == number - 1)
        if self.shuffle:
            items = _shuffled(items, random.Random(self.seed))  # noqa: S311 - no secret
        return iter(items) if self.limit is None else islice(items, self.limit)


@dataclass(frozen=True)
class Sources:
    """The items of several sources, one after another.

    ``columns`` maps ``image`` and ``id`` to a manifest's names for them. ``roots`` are the folders
    that manifests and lists may name files in, beside their own. ``stdin`` gives the lines of
    ``-``.
    """

    given: Sequence[str]
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    roots: Sequence[Path] = ()
    stdin: Iterable[str] = ()

    def items(self) -> Iterator[Item]:
        """All items. Raises :class:`ConfigError` for a source that is none or cannot be read."""
        for source in self.given:
            try:
                yield from self._reader(source)()
            except OSError as error:
                raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error

    def check(self) -> None:
        """Raise :class:`ConfigError` if a source does not exist, before anything begins."""
        if not self.given:
            raise ConfigError("nothing to caption: name files, folders, manifests, URLs, or -")
        for source in self.given:
            self._reader(source)

    def folders(self) -> list[Path]:
        """Folders that hold the sources' files, as far as that is known beforehand."""
        found = [Path(root).resolve() for root in self.roots]
        for source in self.given:
            path = Path(source)
            if source != "-" and not _URL.match(source):
                place = path if path.is_dir() else _fixed_part(source)
                found.append(place.resolve())
        return list(dict.fromkeys(found))

    def home(self) -> Path:
        """The folder whose state folder the run uses if it writes beside its sources."""
        for source in self.given:
            if source != "-" and not _URL.match(source):
                path = Path(source)
                return path if path.is_dir() else _fixed_part(source)
        return Path()

    def count(self) -> int | None:
        """How many items there are; None where only reading them all would tell."""
        readers: list[Iterator[Path]] = []
        for source in self.given:
            path = Path(source)
            if path.is_dir() and not dataset_parts(path):
                readers.append(walk(path))
            elif _URL.match(source) or (path.is_file() and not _is_container(path)):
                readers.append(iter([path]))
            else:
                return None
        return sum(1 for reader in readers for _ in reader)

    def _reader(self, source: str) -> Callable[[], Iterator[Item]]:
        path = Path(source)
        if source == "-":
            return lambda: _lines(self.stdin, "-", self._manifest(None))
        if _URL.match(source):
            return lambda: iter([_url_item(source)])
        try:
            if path.is_dir():
                if dataset_parts(path):
                    return lambda: read_dataset(path, self._manifest(path))
                return lambda: _folder_items(source, walk(path))
            if path.is_file():
                return self._file_reader(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {source!r}: {error}") from error
        if _MAGIC.search(source):
            return lambda: self._matches(source)
        raise ConfigError(f"no file, folder or pattern {source}: check the path")

    def _file_reader(self, path: Path) -> Callable[[], Iterator[Item]]:
        suffix = path.suffix.lower()
        if suffix in TABLES:
            return lambda: self._manifest(path.parent).read(path)
        if suffix in LISTS:
            return lambda: self._list(path)
        if is_archive(path):
            return lambda: read_tar(path)
        return lambda: iter([Item(printable(path), path, relative=printable(Path(path.name)))])

    def _list(self, path: Path) -> Iterator[Item]:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            yield from _lines(lines, str(path), self._manifest(path.parent))

    def _manifest(self, base: Path | None) -> ManifestReader:
        return ManifestReader(base, [Path(root) for root in self.roots], dict(self.columns))

    def _matches(self, pattern: str) -> Iterator[Item]:
        root, empty = _fixed_part(pattern), True
        for name in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - streams, keeps the form
            empty = False
            path = Path(name)
            if path.is_dir():
                continue
            if _is_container(path):
                yield from self._file_reader(path)()
            else:
                yield Item(printable(path), path, relative=_relative(path, root))
        if empty:
            raise ConfigError(f"nothing matches {pattern}: quote it, and check the folder")


def walk(folder: Path) -> Iterator[Path]:
    """Pictures of a folder and its subfolders, sorted; each folder once, whatever links say."""
    visited: set[tuple[int, int]] = set()
    pending = [folder]
    while pending:
        here = pending.pop()
        try:
            status = here.stat()
            names = sorted(os.listdir(here))  # noqa: PTH208 - names only, a folder may be large
        except OSError:
            if here is folder:
                raise
            continue  # a folder that we may not enter holds nothing for us
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        below: list[Path] = []
        for name in names:
            if name.startswith("."):
                continue
            path = here / name
            if path.suffix.lower() in PICTURES and not path.is_dir():
                yield path
            elif path.is_dir():
                below.append(path)
        pending += reversed(below)


def _folder_items(source: str, paths: Iterable[Path]) -> Iterator[Item]:
    root = Path(source)
    for path in paths:
        yield Item(printable(path), path, relative=_relative(path, root))


def _lines(lines: Iterable[str], where: str, reader: ManifestReader) -> Iterator[Item]:
    """A path or URL a line, or a JSON object with the fields of a row."""
    for number, line in enumerate(lines, 1):
        text = line.strip("\r\n")
        if not text.strip():
            continue
        if not text.lstrip().startswith("{"):
            yield reader.located(text, {})
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            yield refused(f"{where}:{number}", BadMessage(f"{where}, line {number}: {error}"))
            continue
        yield reader.item(cast("dict[str, Any]", row), f"{where}:{number}")


def _url_item(url: str) -> Item:
    return Item(url, url, relative=_url_name(url))


def _url_name(url: str) -> str:
    return url.split("?", maxsplit=1)[0].rstrip("/").rsplit("/", maxsplit=1)[-1]


def _is_container(path: Path) -> bool:
    return path.suffix.lower() in {*TABLES, *LISTS} or is_archive(path)


def _fixed_part(pattern: str) -> Path:
    """The folder that everything which matches lies in."""
    parts = Path(pattern).parts
    fixed: list[str] = []
    for part in parts[:-1]:
        if _MAGIC.search(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _relative(path: Path, root: Path) -> str:
    try:
        return printable(path.relative_to(root))
    except ValueError:
        return printable(Path(path.name))


def _shuffled(items: Iterable[Item], rng: random.Random) -> Iterator[Item]:
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < SHUFFLE_BUFFER:
            buffer.append(item)
            continue
        place = rng.randrange(SHUFFLE_BUFFER)
        yield buffer[place]
        buffer[place] = item
    rng.shuffle(buffer)
    yield from buffer

"""Where items come from: files, folders, globs, lists, manifests, archives, URLs, stdin.

Every source is read as it is needed, and none is held whole (a folder's own names aside).
"""

from __future__ import annotations

import glob
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from mlxq_producer.errors import NothingFound
from mlxq_producer.pipeline.archives import is_archive, read_tar
from mlxq_producer.pipeline.columns import Columns, encoding_of
from mlxq_producer.pipeline.folders import Captions, walk
from mlxq_producer.pipeline.item import Item, printable
from mlxq_producer.pipeline.manifests import (
    TABLES,
    ManifestReader,
    dataset_parts,
    read_dataset,
    refused,
)
from mlxq_producer.pipeline.pictures import NOISE, TEXTS, PassedOver, suffix_of
from mlxq_schemas.errors import BadMessage, ConfigError, InvalidJob

LISTS: Final = frozenset({".txt", ".list"})
SHUFFLE_BUFFER: Final = 10_000
"""Items among which ``shuffle`` draws: memory stays bounded, order is mixed well enough."""

Reader = Callable[[PassedOver], Iterator[Item]]

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Choice:
    """Which items of all: ``shard`` (i, n) with 1 <= i <= n, ``limit`` after it, ``shuffle``."""

    shard: tuple[int, int] | None = None
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0

    def of(
        self, items: Iterable[Item], left_out: Callable[[], object] = lambda: None
    ) -> Iterator[Item]:
        """The chosen items; ``left_out`` hears of each that belongs to another shard."""
        if self.shard is not None:
            items = self._of_shard(items, *self.shard, left_out)
        if self.shuffle:
            items = _shuffled(items, random.Random(self.seed))  # noqa: S311 - no secret
        return iter(items) if self.limit is None else islice(items, self.limit)

    @staticmethod
    def _of_shard(
        items: Iterable[Item], number: int, count: int, left_out: Callable[[], object]
    ) -> Iterator[Item]:
        for item in items:
            if zlib.crc32(item.name.encode()) % count == number - 1:
                yield item
            else:
                left_out()


@dataclass(frozen=True)
class Sources:
    """The items of several sources, one after another.

    ``columns`` maps ``image`` and ``id`` to a manifest's names for them. ``roots`` are the folders
    that manifests and lists may name files in, beside their own. ``stdin`` gives the lines of
    ``-``. With ``text_only`` the items are rows without pictures.
    """

    given: Sequence[str]
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    roots: Sequence[Path] = ()
    stdin: Iterable[str] = ()
    text_only: bool = False

    def __post_init__(self) -> None:
        """Lines that come once are kept so that the first can be looked at."""
        if not isinstance(self.stdin, Sequence | Lines):
            object.__setattr__(self, "stdin", Lines(self.stdin))

    def items(self, over: PassedOver | None = None) -> Iterator[Item]:
        """All items; counts in ``over`` the files that are none.

        Raises :class:`ConfigError` for a source that is none or cannot be read.
        """
        over = PassedOver() if over is None else over
        for source in self.given:
            try:
                yield from self._reader(source)(over)
            except OSError as error:
                raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error

    def check(self) -> None:
        """Raise :class:`ConfigError` for a source that does not exist or cannot be used, and
        :class:`NothingFound` if there is no item in any, before anything begins.
        """
        if not self.given:
            raise ConfigError("nothing to caption: name files, folders, manifests, URLs, or -")
        if self.text_only and "image" in self.columns:
            raise ConfigError("--text-only looks for no picture: leave --column image=NAME out")
        for source in self.given:
            self._check(source)
        if (over := self._passed_over_alone) is not None:
            names = ", ".join(self.given[:3]) + (", ..." if len(self.given) > 3 else "")
            said = f"convert the files passed over, {over.listed()}" if over else "check the path"
            raise NothingFound(f"nothing to caption in {names}, no pictures there: {said}")

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

    @property
    def wanted(self) -> Columns:
        """The columns that are asked for."""
        return Columns(self.columns.get("image"), self.columns.get("id"), self.text_only)

    @cached_property
    def _passed_over_alone(self) -> PassedOver | None:
        """What was passed over where there is no item at all; None if there is one."""
        over = PassedOver()
        for source in self.given:
            if source == "-":
                stdin = self.stdin
                if stdin.any() if isinstance(stdin, Lines) else not all(map(is_blank, stdin)):
                    return None
                continue
            try:
                if next(self._reader(source)(over), None) is not None:
                    return None
            except OSError as error:
                raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error
        return over

    def notes(self) -> list[str]:
        """What a user should know of how the manifests are read."""
        return [
            note
            for source in self.given
            for path in _paths(source)
            if path.suffix.lower() in TABLES and path.is_file()
            if (note := self._manifest(path.parent).note(path)) is not None
        ]

    def _check(self, source: str) -> None:
        """What a look at a source's head tells."""
        self._reader(source)
        empty = source != "-"
        for path in _paths(source):
            empty = False
            self._check_path(path)
        if empty:
            raise NothingFound(_no_match(source))

    def _check_path(self, path: Path) -> None:
        if path.suffix.lower() in TABLES and path.is_file():
            self._manifest(path.parent).check(path)
        elif (str(path) in self.given or self.text_only) and path.is_dir() and dataset_parts(path):
            self._manifest(path).check_dataset(path)
        elif self.text_only and path.suffix.lower() not in LISTS:
            raise ConfigError(f"--text-only takes rows of manifests, and {path} has none")

    def _reader(self, source: str) -> Reader:
        path = Path(source)
        if source == "-":
            return lambda _: _lines(self.stdin, "-", self._manifest(None))
        if _URL.match(source):
            return lambda _: iter([_url_item(source)])
        try:
            if path.is_dir():
                if dataset_parts(path):
                    return lambda _: read_dataset(path, self._manifest(path))
                return lambda over: _folder_items(
                    source, walk(path, lambda _, kind: over.add(kind))
                )
            if path.is_file():
                return self._file_reader(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {source!r}: {error}") from error
        if _MAGIC.search(source):
            return lambda over: self._matches(source, over)
        raise ConfigError(f"no file, folder or pattern {source}: check the path")

    def _file_reader(self, path: Path) -> Reader:
        suffix = path.suffix.lower()
        if suffix in TABLES:
            return lambda _: self._manifest(path.parent).read(path)
        if suffix in LISTS:
            return lambda _: self._list(path)
        if is_archive(path):
            return lambda over: read_tar(path, over)
        return lambda _: iter([Item(printable(path), path, relative=printable(Path(path.name)))])

    def _list(self, path: Path) -> Iterator[Item]:
        with path.open(encoding=encoding_of(path), errors="surrogateescape") as lines:
            yield from _lines(lines, str(path), self._manifest(path.parent))

    def _manifest(self, base: Path | None) -> ManifestReader:
        return ManifestReader(base, [Path(root) for root in self.roots], self.wanted)

    def _matches(self, pattern: str, over: PassedOver) -> Iterator[Item]:
        """What a pattern names is an item whatever its suffix, but for captions of pictures."""
        root, empty, beside = _fixed_part(pattern), True, Captions()
        for name in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - streams, keeps the form
            empty = False
            path = Path(name)
            if path.is_dir() or path.name.lower() in NOISE:
                continue
            if suffix_of(pattern) not in TEXTS and path in beside:
                continue
            if _is_container(path):
                yield from self._file_reader(path)(over)
            else:
                yield Item(printable(path), path, relative=_relative(path, root))
        if empty:
            raise NothingFound(_no_match(pattern))


class Lines:
    """Lines that come once, of which the first with something in it can be looked at before."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._head: list[str] = []

    def __iter__(self) -> Iterator[str]:
        while self._head:
            yield self._head.pop(0)
        yield from self._lines

    def any(self) -> bool:
        """Whether there is a line with something in it; waits for one, and does not take it."""
        while not self._head or is_blank(self._head[-1]):
            line = next(self._lines, None)
            if line is None:
                return False
            self._head.append(line)
        return True


def _folder_items(source: str, paths: Iterable[Path]) -> Iterator[Item]:
    root = Path(source)
    for path in paths:
        yield Item(printable(path), path, relative=_relative(path, root))


def is_blank(line: str) -> bool:
    """Whether a line of a list names nothing: it is empty, or a comment."""
    return not line.strip() or line.startswith("#")


def _lines(lines: Iterable[str], where: str, reader: ManifestReader) -> Iterator[Item]:
    """A path or URL a line, or a JSON object with the fields of a row."""
    for number, line in enumerate(lines, 1):
        text = line.strip("\r\n")
        if is_blank(text):
            continue
        if not text.lstrip().startswith("{"):
            if reader.columns.text_only:
                error = InvalidJob(f"{where}:{number}: with --text-only a line is a JSON object")
                yield refused(f"{where}:{number}", error)
            else:
                yield reader.located(text, {})
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield refused(f"{where}:{number}", BadMessage(f"{where}, line {number}: {error}"))
            continue
        yield reader.item(cast("dict[str, Any]", row), f"{where}:{number}")


def is_address(source: str) -> bool:
    """Whether a source is an http(s) URL."""
    return _URL.match(source) is not None


def _url_item(url: str) -> Item:
    return Item(url, url, relative=_url_name(url))


def _url_name(url: str) -> str:
    return url.split("?", maxsplit=1)[0].rstrip("/").rsplit("/", maxsplit=1)[-1]


def _paths(source: str) -> Iterator[Path]:
    """What a source names; nothing for stdin, and the address itself for a URL."""
    if _URL.match(source) or Path(source).exists():
        yield Path(source)
    elif source != "-":
        yield from map(Path, glob.iglob(source, recursive=True))  # noqa: PTH207 - as for the items


def _no_match(pattern: str) -> str:
    return f"nothing matches {pattern}: quote it, and check the folder"


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

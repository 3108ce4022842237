"""One small file beside each picture, or in a folder that mirrors theirs."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from mlxq_producer.errors import OutputFailed
from mlxq_producer.pipeline.item import Item, Row, printable
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.output import Existing
from mlxq_producer.pipeline.pictures import is_picture
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import to_json

Kind = Literal["txt", "caption", "json"]

_FATAL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What would befall every further file too."""


class Sidecars:
    """Files named like their picture, with the suffix of their kind instead (or, with
    ``full_names``, after the picture's own). Written whole or not at all.

    Only a text makes a file: a failed item has none. The ledger has a digest of each file that was
    written; one that differs was edited by somebody, and is kept unless all is to be overwritten.
    """

    def __init__(self, kinds: Sequence[Kind], folder: Path | None, *, full_names: bool) -> None:
        self._kinds = kinds
        self._folder = folder
        self._full_names = full_names
        self._existing: Existing = "skip"
        self._ledger: Ledger | None = None
        self.tell: Callable[[Path], None] = lambda _: None
        """Hears of each file that was to be written, and is kept because somebody edited it."""

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """Begin."""
        if existing == "append" and "json" in self._kinds:
            raise ConfigError("a .json file cannot be appended to: use --sidecar txt, or overwrite")
        self._ledger = ledger
        self._existing = existing

    def write(self, item: Item, row: Row) -> None:
        """Write the item's files, but for those that were edited."""
        if not row.ok:
            return
        for kind in self._kinds:
            path = self._path(item, kind)
            self._reserve(path, item)
            try:
                self._write(path, _content(kind, row), item, kind)
            except (OSError, ValueError) as error:
                self._raise(path, error)

    def sizes(self) -> dict[str, int]:
        """None: nothing grows."""
        return {}

    def finish(self, ledger: Ledger) -> None:
        """Nothing is left to do."""
        del ledger

    def any_there(self, item: Item) -> bool:
        """True if a file stands where one of the item's would."""
        try:
            return any(self._path(item, kind).exists() for kind in self._kinds)
        except (OutputFailed, OSError, ValueError):
            return False

    def taken(self, item: Item, ledger: Ledger) -> OutputFailed | None:
        """Why the item cannot have its files, if they are those of another."""
        for kind in self._kinds:
            path = self._path(item, kind)
            if (other := ledger.owner(_key(path))) not in {None, item.name}:
                return _meeting(path, str(other))
        return None

    def all_edited(self, item: Item, ledger: Ledger) -> list[Path]:
        """The item's files if every one of them is there and not as we wrote it; else none."""
        try:
            paths = [self._path(item, kind) for kind in self._kinds]
            edited = [
                self._look(path, item, kind, ledger).edited
                for path, kind in zip(paths, self._kinds, strict=True)
            ]
        except (OutputFailed, OSError, ValueError):
            return []  # writing it says why
        return paths if all(edited) else []

    def restore(self, item: Item, row: Row) -> None:
        """Write files of a finished item that are gone."""
        if row.ok and self._existing != "append":
            for kind in self._kinds:
                try:
                    path = self._path(item, kind)
                    found = self._look(path, item, kind, self._known())
                    if not found.there:
                        self._reserve(path, item)
                        self._write(path, _content(kind, row), item, kind)
                    elif found.edited:
                        self.tell(path)
                except (OSError, ValueError) as error:
                    self._raise(Path(item.name), error)

    def _path(self, item: Item, kind: Kind) -> Path:
        if self._folder is None:
            if not isinstance(item.media, Path):
                raise OutputFailed(f"{item.name} has no folder of its own: give --out-dir FOLDER")
            place = item.media
        else:
            inside = PurePosixPath(item.relative or item.name)
            if inside.is_absolute() or ".." in inside.parts or not inside.name:
                raise OutputFailed(
                    f"{item.name} would be written outside {self._folder}: name it without '..'"
                )
            place = self._folder / inside
        stem = place.name
        if not self._full_names and is_picture(place.name):
            stem = place.stem
        return place.with_name(f"{stem}.{kind}")

    def _reserve(self, path: Path, item: Item) -> None:
        if other := self._known().take(_key(path), item.name):
            raise _meeting(path, other)

    def _look(self, path: Path, item: Item, kind: Kind, ledger: Ledger) -> _Found:
        """What is in place of an item's file."""
        try:
            there = _digest(path.read_bytes())
        except FileNotFoundError:
            return _Found(None, edited=False)
        ours = ledger.written(_key(path))
        if not ours and (known := ledger.item(item.name)) and known.row is not None:
            # Written by an mlxq that kept no digests: it is what the item's row says.
            ours = {_digest(_content(kind, known.row))}
        return _Found(there, edited=there not in ours)

    def _write(self, path: Path, data: bytes, item: Item, kind: Kind) -> None:
        """Put a file in place at once, unless somebody edited the one that is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._existing == "append" and path.exists():
            self._append(path, data, item, kind)
            return
        with _written(path, data) as temporary:
            # As late as can be: it may be edited while the run goes on.
            found = self._look(path, item, kind, self._known())
            if found.edited and found.there != _digest(data) and self._existing != "overwrite":
                self.tell(path)
                return
            self._known().begin_file(_key(path), _digest(data), found.there)
            temporary.replace(path)
        self._known().end_file(_key(path))

    def _append(self, path: Path, data: bytes, item: Item, kind: Kind) -> None:
        """Add to a file. What others began never becomes ours."""
        old = path.read_bytes()
        if old.endswith(data):
            return  # a run that was killed had just done it
        ours = not self._look(path, item, kind, self._known()).edited
        data = (old if old.endswith(b"\n") or not old else old + b"\n") + data
        with _written(path, data) as temporary:
            if ours:
                self._known().begin_file(_key(path), _digest(data), _digest(old))
            temporary.replace(path)
        if ours:
            self._known().end_file(_key(path))

    def _known(self) -> Ledger:
        assert self._ledger is not None  # noqa: S101 - for the type checker: it is open
        return self._ledger

    @staticmethod
    def _raise(path: Path, error: OSError | ValueError) -> None:
        message = f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise ConfigError(message) from error
        raise OutputFailed(message) from error


@dataclass(frozen=True)
class _Found:
    """The digest of what is there (None: nothing), and whether that is not what we wrote."""

    there: str | None
    edited: bool


def _content(kind: Kind, row: Row) -> bytes:
    if kind == "json":
        return to_json(row.as_dict(), indent=2).encode() + b"\n"
    return row.text.encode() + b"\n"


def _digest(data: bytes) -> str:
    """Tells texts apart, not how editors end lines and files, or mark that they are UTF-8."""
    plain = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n")
    return hashlib.sha256(plain).hexdigest()


def _key(path: Path) -> str:
    """What the ledger calls a file."""
    return printable(path)


def _meeting(path: Path, other: str) -> OutputFailed:
    return OutputFailed(
        f"{path.name} is the file of {other} already: use --full-names (a.png.txt), or "
        "another --out-dir"
    )


@contextmanager
def _written(path: Path, data: bytes) -> Generator[Path]:
    """A file beside ``path`` with these bytes, to be put in its place."""
    # The same name after a kill, so that none stays behind.
    mark = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    temporary = path.with_name(f".mlxq-{mark}.tmp")
    try:
        temporary.write_bytes(data)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)

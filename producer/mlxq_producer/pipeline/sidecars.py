"""One small file beside each picture, or in a folder that mirrors theirs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from mlxq_producer.errors import OutputFailed
from mlxq_producer.pipeline.item import Item, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.output import Existing
from mlxq_producer.pipeline.pictures import is_picture
from mlxq_schemas.errors import ConfigError

Kind = Literal["txt", "caption", "json"]

_FATAL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What would befall every further file too."""


class Sidecars:
    """Files named like their picture, with the suffix of their kind instead (or, with
    ``full_names``, after the picture's own). Written whole or not at all.

    Only a text makes a file: a failed item has none.
    """

    def __init__(self, kinds: Sequence[Kind], folder: Path | None, *, full_names: bool) -> None:
        self._kinds = kinds
        self._folder = folder
        self._full_names = full_names
        self._append = False
        self._ledger: Ledger | None = None

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """Begin."""
        if existing == "append" and "json" in self._kinds:
            raise ConfigError("a .json file cannot be appended to: use --sidecar txt, or overwrite")
        self._ledger = ledger
        self._append = existing == "append"

    def write(self, item: Item, row: Row) -> None:
        """Write the item's files."""
        if not row.ok:
            return
        for kind in self._kinds:
            path = self._path(item, kind)
            self._reserve(path, item)
            try:
                self._put(path, self._content(kind, row), append=self._append)
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

    def restore(self, item: Item, row: Row) -> None:
        """Write files of a finished item that are gone."""
        if row.ok and not self._append:
            for kind in self._kinds:
                try:
                    path = self._path(item, kind)
                    if not path.exists():
                        self._reserve(path, item)
                        self._put(path, self._content(kind, row), append=False)
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
        assert self._ledger is not None  # noqa: S101 - for the type checker: it is open
        if other := self._ledger.take(os.fsencode(path).decode("utf-8", "replace"), item.name):
            raise OutputFailed(
                f"{path.name} is the file of {other} already: use --full-names (a.png.txt), or "
                "another --out-dir"
            )

    @staticmethod
    def _content(kind: Kind, row: Row) -> bytes:
        if kind == "json":
            return json.dumps(row.as_dict(), ensure_ascii=False, indent=2).encode() + b"\n"
        return row.text.encode() + b"\n"

    @staticmethod
    def _put(path: Path, data: bytes, *, append: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.exists():
            old = path.read_bytes()
            if old.endswith(data):
                return  # a run that was killed had just done it
            data = (old if old.endswith(b"\n") or not old else old + b"\n") + data
        # The same name after a kill, so that none stays behind.
        mark = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
        temporary = path.with_name(f".mlxq-{mark}.tmp")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @staticmethod
    def _raise(path: Path, error: OSError | ValueError) -> None:
        message = f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise ConfigError(message) from error
        raise OutputFailed(message) from error

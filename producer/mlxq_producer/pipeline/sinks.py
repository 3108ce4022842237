"""Where rows go, as they come: line files that grow, and tables that are made at the end."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from mlxq_producer.pipeline import edits
from mlxq_producer.pipeline.extras import need
from mlxq_producer.pipeline.item import Item, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.output import Existing, Sink
from mlxq_producer.pipeline.shards import Shards
from mlxq_schemas.errors import ConfigError, Unsupported
from mlxq_schemas.plain import to_json

COLUMNS: Final = (
    *("source", "status", "text", "code", "message", "reason", "model"),
    *("prompt_tokens", "completion_tokens", "fields"),
)
"""Columns of a CSV or Parquet file; ``fields`` holds a manifest's row as JSON."""
TAIL_BYTES: Final = 64 * 1024
"""How much of a file's end is looked at for a torn row; a file system's blocks are smaller."""


_PARQUET_MARK: Final = b"PAR1"


def file_sink(path: Path, tar_items: int) -> Sink:
    """The sink for an output, by its suffix. Raises :class:`Unsupported`, :class:`ConfigError`."""
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return LineFile(path, JsonLines())
        case ".csv":
            return LineFile(path, CsvLines())
        case ".parquet":
            need("pyarrow.parquet", f"{path}")
            return ParquetFile(path)
        case ".tar":
            return Shards(path, tar_items)
        case suffix:
            raise Unsupported(
                f"no output of kind {suffix or path.name!r}: give a .jsonl, .csv, .parquet or "
                "%06d.tar, or --sidecar"
            )


class JsonLines:
    """An object a line; no header."""

    header = b""

    def line(self, row: Row) -> bytes:
        """The bytes of a row."""
        return row.as_json().encode() + b"\n"


class CsvLines:
    """A record a row, under a header."""

    header = (",".join(COLUMNS) + "\n").encode()

    def line(self, row: Row) -> bytes:
        """The bytes of a row; NUL, which ends a text for many readers of CSV, is U+FFFD."""
        buffer = io.StringIO()
        # With this end the writer quotes what holds a carriage return, too.
        csv.writer(buffer, lineterminator="\r\n").writerow(flat(row).values())
        text = buffer.getvalue().removesuffix("\r\n").replace("\0", "\ufffd")
        return f"{text}\n".encode()


class LineFile:
    """A file that grows by a line a row.

    The ledger knows how long the file was when it last took a row: what a kill left beyond that is
    cut off, and a file that is shorter, or whose last row is torn, is made again. Bytes that were
    there before the first row (``append``) stay.
    """

    def __init__(self, path: Path, lines: JsonLines | CsvLines) -> None:
        self._path = path
        self._lines = lines
        self._handle = -1
        self._size = 0
        self._base = 0
        self._ledger: Ledger | None = None  # until the first row of a run

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """Begin, or go on where the ledger says."""
        self._ledger = ledger
        self._path.parent.mkdir(parents=True, exist_ok=True)
        there = self._path.stat().st_size if self._path.exists() else 0
        known = ledger.get(f"size:{self._path}")
        if known is None:
            self._base = self._first_byte(there, existing)
            ledger.set(f"base:{self._path}", str(self._base))
            self.rebuild(ledger)
            return
        self._base = min(int(ledger.get(f"base:{self._path}") or 0), there)
        ours = (self._lines.line(row) for row in ledger.rows())
        if existing != "overwrite":
            edits.check_lines(self._path, ledger, self._base, chain([self._lines.header], ours))
        begins = existing == "overwrite"  # one that goes on
        if begins or there < int(known) or self._is_torn(int(known)):
            self.rebuild(ledger)
            return
        self._start(int(known))
        os.ftruncate(self._handle, self._size)

    def write(self, item: Item, row: Row) -> None:
        """Append the row."""
        del item
        if self._ledger is not None:
            edits.begin(self._path, self._ledger)
            self._ledger = None
        self._append(self._lines.line(row))

    def restore(self, item: Item, row: Row) -> None:
        """Nothing: rows that are gone were seen to when it was opened."""
        del item, row

    def sizes(self) -> dict[str, int]:
        """Its length."""
        return {str(self._path): self._size}

    def finish(self, ledger: Ledger) -> None:
        """Make the file anew if a row in it was replaced; see to it that it is on disk."""
        if ledger.get("dirty"):
            self.rebuild(ledger)
        edits.note(self._path, ledger)
        os.fsync(self._handle)
        os.close(self._handle)
        self._handle = -1

    def rebuild(self, ledger: Ledger) -> None:
        """Write the file again from the ledger, and put it in place at once."""
        temporary = self._path.with_name(f".{self._path.name}.mlxq-tmp")
        with temporary.open("wb") as file:
            if self._base:
                with self._path.open("rb") as old:
                    shutil.copyfileobj(_Head(old, self._base), file)
            else:
                file.write(self._lines.header)
            for row in ledger.rows():
                file.write(self._lines.line(row))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        edits.forget(self._path, ledger)
        temporary.replace(self._path)
        ledger.set(f"size:{self._path}", str(size))
        self._start(size)

    def _first_byte(self, there: int, existing: Existing) -> int:
        if there == 0 or existing == "overwrite":
            return 0
        if existing == "skip":
            raise ConfigError(
                f"{self._path} exists and no ledger knows it: give another name, or "
                "--existing overwrite or append"
            )
        with self._path.open("rb+") as file:
            if not file.read(len(self._lines.header)) == self._lines.header:
                raise ConfigError(
                    f"{self._path} has other columns than {', '.join(COLUMNS)}: give another name"
                )
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
                there += 1
        return there

    def _is_torn(self, size: int) -> bool:
        """True if the last row did not get to the disk: a file system may leave zeros there."""
        if size <= self._base:
            return False
        with self._path.open("rb") as file:
            file.seek(max(self._base, size - TAIL_BYTES))
            tail = file.read(size - file.tell())
        return not tail.endswith(b"\n") or b"\0" in tail

    def _start(self, size: int) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._size = size

    def _append(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.write(self._handle, data[written:])
        except OSError as error:
            os.ftruncate(self._handle, self._size)
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error
        self._size += len(data)


class ParquetFile:
    """A table that cannot grow in place: it is made from the ledger when the run ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """See whether the file is ours."""
        ours = ledger.get(f"made:{self._path}") is not None
        if self._path.exists() and not ours and existing != "overwrite":
            raise ConfigError(
                f"{self._path} exists and no ledger knows it: give another name, or "
                "--existing overwrite"
            )
        made = ledger.get(f"made:{self._path}") == "1"
        if existing != "overwrite" and made and not self._is_torn():
            edits.check_whole(self._path, ledger)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed run wrote to its ledger is not in the table yet.
        self._changed = not made or not self._is_whole()
        ledger.set(f"made:{self._path}", "0")

    def write(self, item: Item, row: Row) -> None:
        """The ledger has the row."""
        del item, row
        self._changed = True

    def restore(self, item: Item, row: Row) -> None:
        """Nothing: the table is made whole."""
        del item, row

    def sizes(self) -> dict[str, int]:
        """None: nothing grows."""
        return {}

    def finish(self, ledger: Ledger) -> None:
        """Make the table, and put it in place at once."""
        if self._changed:
            edits.forget(self._path, ledger)
            self._make(ledger)
            edits.note(self._path, ledger)
        ledger.set(f"made:{self._path}", "1")

    def _make(self, ledger: Ledger) -> None:
        pyarrow = need("pyarrow", f"{self._path}")
        parquet = need("pyarrow.parquet", f"{self._path}")
        numbers = {"prompt_tokens", "completion_tokens"}
        kinds = {n: pyarrow.int64() if n in numbers else pyarrow.string() for n in COLUMNS}
        schema = pyarrow.schema(list(kinds.items()))
        temporary = self._path.with_name(f".{self._path.name}.mlxq-tmp")
        # By file, not by name: the library takes names in UTF-8 only.
        with temporary.open("wb") as file:
            with parquet.ParquetWriter(file, schema) as writer:
                for rows in _pages(ledger):
                    table = pyarrow.Table.from_pylist([flat(row) for row in rows], schema=schema)
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def _is_whole(self) -> bool:
        """True if the table is there up to the mark at its end."""
        return self._marks()[1] == _PARQUET_MARK

    def _is_torn(self) -> bool:
        """True if a table begins there, or zeros, and has no end: a crash may leave that."""
        begin, end = self._marks()
        return end != _PARQUET_MARK and begin in (_PARQUET_MARK, bytes(len(begin)))

    def _marks(self) -> tuple[bytes, bytes]:
        """The first and the last bytes; none of a file that is not there."""
        try:
            with self._path.open("rb") as file:
                begin = file.read(len(_PARQUET_MARK))
                file.seek(-len(begin), os.SEEK_END)
                return begin, file.read()
        except OSError:
            return b"", b""


def flat(row: Row) -> dict[str, Any]:
    """A row by its columns; ``fields`` as JSON text, or None if there are none."""
    fields = to_json(row.fields) if row.fields else None
    values = {name: getattr(row, name) for name in COLUMNS}
    return {**values, "fields": fields}


def _pages(ledger: Ledger) -> Iterator[list[Row]]:
    rows = ledger.rows()
    while page := list(islice(rows, 4096)):
        yield page


class _Head:
    """The first bytes of a file, for copying."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        data = self._file.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data

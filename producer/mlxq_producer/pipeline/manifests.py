"""Rows of tables as items: CSV, TSV, JSON lines, Parquet, and datasets that were saved to disk."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mlxq_producer.pipeline.extras import need
from mlxq_producer.pipeline.item import Item, printable
from mlxq_schemas.errors import (
    BadMessage,
    ConfigError,
    InvalidJob,
    MediaForbidden,
    MediaNotFound,
    MlxqError,
)

TABLES: Final = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
COLUMNS: Final = ("image", "file_name", "filename", "file", "path", "image_path", "url")
"""Where a row's picture is looked for if ``columns`` does not say."""
BATCH: Final = 64
"""Rows decoded at once: they may hold the pictures themselves."""

_URL: Final = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class ManifestReader:
    """Turns rows into items.

    Relative paths start at ``base`` (None: the working folder, and any file may be named, since
    whoever types the lines could name it anyway). Files outside ``base`` and ``roots`` are refused.
    """

    base: Path | None
    roots: list[Path]
    columns: Mapping[str, str]

    def read(self, path: Path) -> Iterator[Item]:
        """The items of a manifest. Raises :class:`ConfigError` if it cannot be read at all."""
        match path.suffix.lower():
            case ".parquet":
                rows = _parquet_rows(path)
            case ".csv" | ".tsv":
                rows = _csv_rows(path)
            case _:
                rows = _json_rows(path)
        for number, row in enumerate(rows, 1):
            where = f"{path}:{number}"
            yield refused(where, row) if isinstance(row, MlxqError) else self.item(row, where)

    def item(self, row: object, where: str) -> Item:
        """The item of one row; what is wrong with it becomes the item's error."""
        if not isinstance(row, Mapping):
            return refused(where, BadMessage(f"{where}: a row is a map of fields"))
        fields = {str(k): v for k, v in cast("Mapping[object, Any]", row).items() if k is not None}
        column = self.columns.get("image")
        if column is None:
            column = next((name for name in COLUMNS if fields.get(name)), None)
        elif column not in fields:
            return refused(where, self._no_column(where, column, fields))
        value = None if column is None else fields[column]
        name = self._name(fields)
        rest = {k: v for k, v in fields.items() if not _holds_bytes(v)}
        if isinstance(value, Mapping):  # as Hugging Face's image columns are stored
            inner = cast("Mapping[str, Any]", value)
            value = inner.get("bytes") or inner.get("path")
        if column is None and self.columns.get("image") is None:
            return Item(name or where, None, rest, relative=name or where.rsplit("/", 1)[-1])
        if isinstance(value, bytes):
            return Item(name or where, value, rest, relative=name or where.rsplit("/", 1)[-1])
        if not isinstance(value, str) or not value:
            error = MediaNotFound(f"{where}: column {column} holds no path, URL or bytes")
            return refused(name or where, error)
        found = self.located(value, rest)
        if name is None:
            return found
        return Item(name, found.media, rest, found.relative, found.error)

    def located(self, text: str, fields: Mapping[str, Any]) -> Item:
        """The item for a path or URL."""
        if _URL.match(text):
            return Item(text, text, fields, text.split("?", maxsplit=1)[0].rsplit("/", 1)[-1])
        path = Path(text).expanduser() if self.base is None else self.base / text
        relative = printable(Path(text if self.base else path.name))
        item = Item(printable(path), path, fields, relative)
        if self.base is None or self._allowed(path):
            return item
        error = MediaForbidden(
            f"{text} lies outside {self.base}: allow its folder with --root FOLDER"
        )
        return Item(item.name, None, fields, relative, error)

    def _allowed(self, path: Path) -> bool:
        try:
            place = path.resolve()
        except (OSError, ValueError, RuntimeError):
            return True  # reading it says why
        return any(
            place.is_relative_to(root.resolve()) for root in (self.base, *self.roots) if root
        )

    def _name(self, fields: Mapping[str, Any]) -> str | None:
        column = self.columns.get("id")
        if column is None:
            return None
        value = fields.get(column)
        return None if value is None or value == "" else str(value)

    @staticmethod
    def _no_column(where: str, column: str, fields: Mapping[str, Any]) -> InvalidJob:
        return InvalidJob(f"{where}: no column {column}; it has {', '.join(sorted(fields))}")


def refused(name: str, error: MlxqError) -> Item:
    """An item that its source could not give."""
    return Item(name, relative=name.rsplit("/", 1)[-1], error=error)


def dataset_parts(folder: Path) -> list[Path]:
    """The folders with data of a dataset that ``save_to_disk`` wrote; none for other folders."""
    if (folder / "state.json").is_file():
        return [folder]
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return [folder / str(split) for split in splits]
    return []


def read_dataset(folder: Path, reader: ManifestReader) -> Iterator[Item]:
    """The items of a dataset that ``save_to_disk`` of Hugging Face's ``datasets`` wrote."""
    pyarrow = need("pyarrow", "a dataset on disk")
    ipc = need("pyarrow.ipc", "a dataset on disk")
    for part in dataset_parts(folder):
        state = json.loads((part / "state.json").read_text(encoding="utf-8"))
        number = 0
        for entry in state["_data_files"]:
            with pyarrow.memory_map(str(part / entry["filename"])) as source:
                for batch in ipc.open_stream(source):
                    for start in range(0, batch.num_rows, BATCH):
                        for row in batch.slice(start, BATCH).to_pylist():
                            number += 1
                            yield reader.item(row, f"{part}:{number}")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    parquet = need("pyarrow.parquet", f"{path}")
    pyarrow = need("pyarrow", f"{path}")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path} is no Parquet file that can be read: {error}") from error


def _csv_rows(path: Path) -> Iterator[dict[str, Any] | MlxqError]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        if not reader.fieldnames:
            raise ConfigError(f"{path} has no header: its first line must name the columns")
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadMessage(f"{path}, line {reader.line_num}: {error}")
                continue
            yield {name: value for name, value in row.items() if isinstance(name, str)}


def _json_rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not text:
                continue
            try:
                yield json.load(io.BytesIO(text))
            except ValueError as error:
                yield BadMessage(f"{path}, line {number} is not JSON: {error}")


def _holds_bytes(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(v, bytes) for v in cast("Mapping[str, object]", value).values())
    return isinstance(value, bytes)

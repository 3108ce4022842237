"""Rows of tables as items: CSV, TSV, JSON lines, Parquet, and datasets that were saved to disk."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from mlxq_producer.errors import NoImageColumn
from mlxq_producer.media import expanded
from mlxq_producer.pipeline.columns import Columns, encoding_of, layout, missing
from mlxq_producer.pipeline.extras import need
from mlxq_producer.pipeline.item import Item, printable
from mlxq_schemas.errors import (
    BadMessage,
    ConfigError,
    MediaForbidden,
    MediaNotFound,
    MlxqError,
    Unsupported,
)

TABLES: Final = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
BATCH: Final = 64
"""Rows decoded at once: they may hold the pictures themselves."""
HEAD: Final = 1000
"""Rows of a JSON lines file that are looked at for columns, before anything begins."""

_URL: Final = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class ManifestReader:
    """Turns rows into items.

    Relative paths start at ``base`` (None: the working folder, and any file may be named, since
    whoever types the lines could name it anyway). Files outside ``base`` and ``roots`` are refused.
    """

    base: Path | None
    roots: Sequence[Path]
    columns: Columns

    def check(self, path: Path) -> None:
        """Raise :class:`NoImageColumn` if a manifest has no column with pictures; other
        :class:`ConfigError` if it cannot be read.
        """
        match path.suffix.lower():
            case ".parquet":
                columns = _parquet_columns(path)
            case ".csv" | ".tsv":
                columns = layout(path, self.columns).columns
            case _:
                columns = _json_columns(path)
        if columns:
            self.columns.check(str(path), columns)

    def note(self, path: Path) -> str | None:
        """What is unusual in how a manifest is read."""
        if path.suffix.lower() not in {".csv", ".tsv"}:
            return None
        found = layout(path, self.columns)
        if found.delimiter == ("\t" if path.suffix.lower() == ".tsv" else ","):
            return None
        mark = {"\t": "tabs"}.get(found.delimiter, f"'{found.delimiter}'")
        return f"{path}: columns are separated by {mark}: {', '.join(found.columns)}"

    def check_dataset(self, folder: Path) -> None:
        """The same for a dataset that was saved to disk."""
        for part in dataset_parts(folder):
            for columns in _dataset_columns(part):
                self.columns.check(str(part), columns)

    def read(self, path: Path) -> Iterator[Item]:
        """The items of a manifest. Raises :class:`ConfigError` if it cannot be read at all."""
        match path.suffix.lower():
            case ".parquet":
                rows = _parquet_rows(path)
            case ".csv" | ".tsv":
                rows = _csv_rows(path, self.columns)
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
        rest = {k: v for k, v in fields.items() if not _holds_bytes(v)}
        name = where
        try:
            name = self._name(fields) or where
            if self.columns.text_only:
                return Item(name, None, rest, relative=name.rsplit("/", 1)[-1])
            column = self.columns.image_in(fields)
            if column is None:
                raise MediaNotFound(f"{where}: {missing('image', self.columns.image, fields)}")
            value = _picture(fields[column], f"{where}: column {column}")
        except (MediaNotFound, NoImageColumn, Unsupported) as error:
            return refused(name, error, rest)
        if isinstance(value, bytes):
            return Item(name, value, rest, relative=name.rsplit("/", 1)[-1])
        found = self.located(value, rest)
        if name == where:
            return found
        return Item(name, found.media, rest, found.relative, found.error)

    def located(self, text: str, fields: Mapping[str, Any]) -> Item:
        """The item for a path or URL."""
        if _URL.match(text):
            return Item(text, text, fields, text.split("?", maxsplit=1)[0].rsplit("/", 1)[-1])
        path = expanded(text) if self.base is None else self.base / text
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
        column = self.columns.id_in(fields)
        value = None if column is None else fields[column]
        return None if value is None or value == "" else str(value)


def refused(name: str, error: MlxqError, fields: Mapping[str, Any] | None = None) -> Item:
    """An item that its source could not give."""
    return Item(name, fields=fields or {}, relative=name.rsplit("/", 1)[-1], error=error)


def _picture(value: object, where: str) -> str | bytes:
    """What a cell says of the row's picture: a path, a URL, or its bytes.

    Raises :class:`MediaNotFound` for a cell that holds none, :class:`Unsupported` for several.
    """
    match value:
        case Mapping():  # as Hugging Face's image columns are stored
            inner = cast("Mapping[str, object]", value)
            return _picture(inner.get("bytes") or inner.get("path"), where)
        case [one]:
            return _picture(one, where)
        case [_, *_] if all(cast("list[object]", value)):
            raise Unsupported(f"{where} holds {len(value)} pictures: give each a row of its own")
        case str() if value.strip():
            return value
        case bytes() if value:
            return value
        case _:
            raise MediaNotFound(
                f"{where} holds no path, URL or bytes: fill it, or use --text-only for rows "
                "without pictures"
            )


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


def _dataset_columns(part: Path) -> Iterator[list[str]]:
    pyarrow = need("pyarrow", "a dataset on disk")
    ipc = need("pyarrow.ipc", "a dataset on disk")
    state = json.loads((part / "state.json").read_text(encoding="utf-8"))
    for entry in state["_data_files"][:1]:
        with pyarrow.memory_map(str(part / entry["filename"])) as source:
            yield list(ipc.open_stream(source).schema.names)


def _parquet_columns(path: Path) -> list[str]:
    parquet = need("pyarrow.parquet", f"{path}")
    pyarrow = need("pyarrow", f"{path}")
    try:
        with path.open("rb") as source, parquet.ParquetFile(source) as file:
            return list(file.schema_arrow.names)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path} is no Parquet file that can be read: {error}") from error


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    parquet = need("pyarrow.parquet", f"{path}")
    pyarrow = need("pyarrow", f"{path}")
    try:
        with path.open("rb") as source, parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path} is no Parquet file that can be read: {error}") from error


def _csv_rows(path: Path, wanted: Columns) -> Iterator[dict[str, Any] | MlxqError]:
    found = layout(path, wanted)
    with path.open(encoding=found.encoding, errors="replace", newline="") as file:
        for _ in range(found.skip):
            file.readline()
        reader = csv.DictReader(file, found.columns, delimiter=found.delimiter)
        next(reader)  # the header itself
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadMessage(f"{path}, line {reader.line_num}: {error}")
                continue
            if any(cast("dict[None, list[str]]", row).get(None, ())):
                yield BadMessage(
                    f"{path}, line {reader.line_num} has more cells than the header: put cells "
                    f"that have a {found.delimiter!r} in them in quotes"
                )
                continue
            yield {name: value for name, value in row.items() if isinstance(name, str)}


def _json_columns(path: Path) -> list[str]:
    """The fields of the first rows; none if no row is a map."""
    found: dict[str, None] = {}
    for row in islice(_json_rows(path), HEAD):
        if isinstance(row, dict):
            found |= dict.fromkeys(map(str, cast("dict[object, object]", row)))
    return list(found)


def _json_rows(path: Path) -> Iterator[Any]:
    for number, line in enumerate(_encoded_lines(path), 1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            continue
        try:
            yield json.load(io.BytesIO(text))
        except (ValueError, RecursionError) as error:
            yield BadMessage(f"{path}, line {number} is not JSON: {error}")


def _encoded_lines(path: Path) -> Iterable[bytes]:
    """The lines of a file as UTF-8."""
    encoding = encoding_of(path)
    if encoding == "utf-16":
        with path.open(encoding=encoding, errors="replace", newline="\n") as file:
            yield from (line.encode(errors="replace") for line in file)
    else:
        with path.open("rb") as file:
            yield from file


def _holds_bytes(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(v, bytes) for v in cast("Mapping[str, object]", value).values())
    return isinstance(value, bytes)

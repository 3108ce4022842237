"""Which column of a table holds the pictures, and by what a CSV file's columns are parted."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlxq_producer.errors import NoImageColumn
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.near import did_you_mean

COLUMNS: Final = ("image", "file_name", "filename", "file", "path", "image_path", "url")
"""Where a row's picture is looked for if nobody says."""
DELIMITERS: Final = (",", ";", "\t", "|")

_SHOWN: Final = 20
"""Columns that a message names."""
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
"""How some spreadsheets say in the first line what parts the columns."""
_BOMS: Final = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class Columns:
    """What to look for in a table: ``image`` and ``id`` as the user named them, else None.

    Names are matched as they are, and where none is, without regard to case and outer blanks.
    ``text_only``: no picture is looked for.
    """

    image: str | None = None
    id: str | None = None
    text_only: bool = False

    def image_in(self, columns: Iterable[str]) -> str | None:
        """The column with the pictures; None if there is none. Raises :class:`NoImageColumn` if
        there are several that might be meant.
        """
        if self.text_only:
            return None
        for wanted in COLUMNS if self.image is None else (self.image,):
            if (found := match(wanted, columns, "image")) is not None:
                return found
        return None

    def id_in(self, columns: Iterable[str]) -> str | None:
        """The column with the rows' names; None if nobody asked for one, or there is none."""
        return None if self.id is None else match(self.id, columns, "id")

    def check(self, table: str, columns: Sequence[str]) -> None:
        """Raise :class:`NoImageColumn` if a table with these columns lacks what is looked for."""
        try:
            image, name = self.image_in(columns), self.id_in(columns)
        except NoImageColumn as error:
            raise NoImageColumn(f"{table}: {error.message}") from error
        if self.id is not None and name is None:
            raise NoImageColumn(f"{table}: {missing('id', self.id, columns)}")
        if image is None and not self.text_only:
            raise NoImageColumn(f"{table}: {missing('image', self.image, columns)}")
        if image is not None and list(columns).count(image) > 1:
            raise NoImageColumn(f"{table} has two columns {image}: rename one of them")


def match(wanted: str, columns: Iterable[str], role: str) -> str | None:
    """The column of that name. Raises :class:`NoImageColumn` if there are two but for case."""
    columns = list(columns)
    if wanted in columns:
        return wanted
    alike = list(dict.fromkeys(name for name in columns if _plain(name) == _plain(wanted)))
    if len(alike) > 1:
        raise NoImageColumn(
            f"columns {', '.join(alike)} differ only by case: say which with --column {role}=NAME"
        )
    return alike[0] if alike else None


def missing(role: str, wanted: str | None, columns: Iterable[str]) -> str:
    """Why there is no such column, and what to do."""
    seen = sorted(map(str, columns))
    more = f", and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else ""
    there = f"it has {', '.join(seen[:_SHOWN]) or 'none'}{more}"
    if wanted is not None:
        meant = did_you_mean(wanted, seen)
        return f"no column {wanted}{meant}; {there}: correct --column {role}=NAME"
    return (
        f"no column with pictures ({', '.join(COLUMNS)}); {there}: name it with --column "
        "image=NAME, or use --text-only for rows without pictures"
    )


@dataclass(frozen=True)
class Layout:
    """How a CSV file is to be read: what parts its columns, its encoding, lines before the
    header (0 or 1), and the columns themselves.
    """

    delimiter: str
    encoding: str
    skip: int
    columns: list[str]


def layout(path: Path, wanted: Columns) -> Layout:
    """Look at a CSV or TSV file's first lines. Raises :class:`ConfigError` if it has no header.

    What parts the columns is that which makes one of them the column looked for. Counting
    characters, as :class:`csv.Sniffer` does, is misled by commas in captions.
    """
    encoding = encoding_of(path)
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        said = _SEPARATOR_LINE.fullmatch(file.readline(1 << 16))
    choices = [said[1]] if said else sorted(DELIMITERS, key=lambda mark: mark != usual)
    headers = {mark: _header(path, encoding, mark, int(said is not None)) for mark in choices}
    if not any(headers.values()):
        raise ConfigError(f"{path} has no header: its first line must name the columns")
    mark = next((mark for mark in choices if _fits(wanted, headers[mark])), None)
    if mark is None:
        several = [mark for mark in choices if len(headers[mark]) > 1]
        mark = several[0] if several else choices[0]
    return Layout(mark, encoding, int(said is not None), headers[mark])


def encoding_of(path: Path) -> str:
    """UTF-16 if the file begins like that, else UTF-8 with or without a mark."""
    with path.open("rb") as file:
        return _BOMS.get(file.read(2), "utf-8-sig")


def _fits(wanted: Columns, columns: Sequence[str]) -> bool:
    """Whether this header has what is looked for; where nothing is, nothing tells."""
    try:
        if wanted.text_only:
            return wanted.id_in(columns) is not None
        return wanted.image_in(columns) is not None
    except NoImageColumn:
        return True


def _header(path: Path, encoding: str, delimiter: str, skip: int) -> list[str]:
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        for _ in range(skip):
            file.readline()
        try:
            # As csv.DictReader does: lines that are empty come before the header.
            return next((row for row in csv.reader(file, delimiter=delimiter) if row), [])
        except csv.Error:
            return []


def _plain(name: str) -> str:
    return name.strip().casefold()

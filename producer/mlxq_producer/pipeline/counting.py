"""How many items there will be, told beforehand where that costs less than reading them."""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxq_producer.pipeline.archives import is_archive
from mlxq_producer.pipeline.columns import encoding_of, layout
from mlxq_producer.pipeline.extras import need
from mlxq_producer.pipeline.folders import walk
from mlxq_producer.pipeline.manifests import TABLES, dataset_parts
from mlxq_producer.pipeline.sources import LISTS, Choice, Sources, is_address, is_blank


def chosen(choice: Choice, total: int) -> int:
    """How many of so many items a run looks at; about, where it takes one of several shards."""
    if choice.shard is not None:
        total //= choice.shard[1]
    return total if choice.limit is None else min(total, choice.limit)


def count(sources: Sources) -> int | None:
    """About how many items the sources hold; None where only reading them all would tell."""
    return _sum(_count_source(sources, source) for source in sources.given)


def _count_source(sources: Sources, source: str) -> int | None:
    path = Path(source)
    if source == "-" or (path.is_dir() and dataset_parts(path)):
        return None
    if path.is_dir():
        return _length(walk(path))
    if is_address(source):
        return 1
    if path.is_file():
        return _count_file(sources, path)
    names = map(Path, glob.iglob(source, recursive=True))  # noqa: PTH207 - streams
    return _sum(_count_file(sources, name) for name in names if not name.is_dir())


def _count_file(sources: Sources, path: Path) -> int | None:
    match path.suffix.lower():
        case ".parquet":
            with path.open("rb") as file:
                return need("pyarrow.parquet", f"{path}").ParquetFile(file).metadata.num_rows
        case ".csv" | ".tsv":
            return _count_csv(sources, path)
        case suffix if suffix in TABLES or suffix in LISTS:
            with path.open(encoding=encoding_of(path), errors="replace", newline="\n") as file:
                return _length(line for line in file if not is_blank(line))
        case _:
            return None if is_archive(path) else 1


def _count_csv(sources: Sources, path: Path) -> int:
    found = layout(path, sources.wanted)
    with path.open(encoding=found.encoding, errors="replace", newline="") as file:
        for _ in range(found.skip):
            file.readline()
        rows = _length(row for row in csv.reader(file, delimiter=found.delimiter) if row)
    return max(rows - 1, 0)


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for number in counts:
        if number is None:
            return None
        total += number
    return total


def _length(things: Iterable[Any]) -> int:
    return sum(1 for _ in things)

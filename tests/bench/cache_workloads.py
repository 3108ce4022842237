"""What caches save of four workloads, and what they could: ``python -m bench.cache_workloads``.

Four chats that grow, many system prompts that few users share, one instruction over many pictures,
and few pictures asked many things: without caches, then cold, warm and after a restart, with ample
memory, a third of what is wanted and none, without and with a folder. Counts alone, no times. Exits
with 1 if any text differs from that without caches.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path

import pinned  # noqa: F401 - texts are compared word for word
import tiny_models
from bench.workloads.asking import Sizes, workloads
from bench.workloads.measuring import Cell, measure
from bench.workloads.settings import SETTINGS, Setting
from mlxq_worker.cache.measure_model import write_larger

HEADER = (
    "| caches | pass | tokens | computed | least | cached | pictures | encoded | least | read, kB "
    "| used, kB | written, kB | evicted, memory | evicted, SSD | texts |"
)

MARKS = ("<!-- tables of bench.cache_workloads -->", "<!-- end of tables -->")


def run(
    sizes: Sizes,
    *,
    model: str = "tiny",
    only: Sequence[int] = (),
    settings: Sequence[Setting] = SETTINGS,
) -> list[Cell]:
    """Every cell. ``model``: "tiny" or "larger" (random weights), "bundled", or a folder.

    ``only``: numbers of workloads, from 1; all if there are none.
    """
    chosen = [one for n, one in enumerate(workloads(sizes), 1) if not only or n in only]
    with tempfile.TemporaryDirectory(prefix="mlxq-workloads-") as made, _model(model) as name:
        return [
            cell
            for number, workload in enumerate(chosen)
            for cell in measure(workload, name, Path(made, str(number)), settings)
        ]


@contextmanager
def _model(name: str) -> Iterator[str | None]:
    with tempfile.TemporaryDirectory(prefix="mlxq-workloads-model-") as made:
        folder = Path(made, name.rpartition("/")[2])
        match name:
            case "tiny":
                yield str(tiny_models.build("qwen3_vl", folder))
            case "larger":
                yield str(write_larger(folder))
            case "bundled":
                yield None
            case _:
                yield name


def table(cells: Sequence[Cell]) -> str:
    """Markdown, a table for each workload."""
    lines: list[str] = []
    workload = ""
    for cell in cells:
        if cell.workload != workload:
            workload = cell.workload
            lines += ["", f"### {workload}", "", HEADER, "|---|---|" + "---:|" * 12 + "---|"]
        lines.append("| " + " | ".join(_row(cell)) + " |")
    return "\n".join(lines[1:])


def put(page: str, tables: str) -> str:
    """The page with other tables between its marks; raises :class:`ValueError` without these."""
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{tables}\n\n{MARKS[1]}{after}"


def _row(cell: Cell) -> list[str]:
    numbers = (cell.prompt_tokens, cell.computed, cell.least, cell.cached)
    numbers += (cell.pictures, cell.encoded, cell.least_encoded)
    sizes = (cell.read_bytes, cell.used_bytes, cell.written_bytes)
    evicted = (cell.evicted_memory, cell.evicted_ssd)
    figures = (*numbers, *(round(size / 1000) for size in sizes), *evicted)
    told = "equal" if not cell.wrong else f"**{cell.wrong} differ**"
    return [cell.setting, cell.name, *(f"{figure:,}" for figure in figures), told]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache_workloads", description=__doc__)
    parser.add_argument("--model", default="tiny", help="tiny, larger, bundled or a folder")
    parser.add_argument("--only", default="", help="numbers of workloads, by commas")
    parser.add_argument("--short", action="store_true", help="so little that it takes seconds")
    parser.add_argument("--into", type=Path, help="put the tables between the marks of this page")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    for size in fields(Sizes):
        parser.add_argument(f"--{size.name}", type=int, help=f"[default: {size.default}]")
    options = parser.parse_args()
    sizes = Sizes().short() if options.short else Sizes()
    given = {size.name: getattr(options, size.name) for size in fields(Sizes)}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    cells = run(sizes, model=options.model, only=[int(n) for n in options.only.split(",") if n])
    print(json.dumps([asdict(cell) for cell in cells]) if options.json else table(cells))
    if options.into:
        options.into.write_text(put(options.into.read_text(), table(cells)))
    sys.exit(any(cell.wrong for cell in cells))


if __name__ == "__main__":
    main()

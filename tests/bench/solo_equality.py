"""Rows whose text in a batch is not that of the row alone: ``python -m bench.solo_equality``.

Tiny models of every family with random weights, in each type, on the device that MLX takes by
itself (``MLXQ_DEVICE`` chooses another). Rows of text and of pictures join and leave while others
decode. Counted are rows whose tokens differ anywhere, and how early they part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx

import tiny_models
from mlxq_schemas import Sampling
from mlxq_worker.engine import BatchGenerator, Request
from mlxq_worker.models.load import DtypeName, LoadedModel, load_model
from mlxq_worker.models.placement import DeviceName, place
from mlxq_worker.models.prepared import Prepared
from pictures import random_picture
from subject import Subject

WEIGHTS = ("float32", "bfloat16", "8bit-float32", "4bit-float32", "4bit-bfloat16")
TOKENS = 48


@dataclass(frozen=True)
class Line:
    """``parted``: of so many rows the text differs; ``first``: median index of the first other
    token, None if there is none.
    """

    family: str
    weights: str
    rows: int
    parted: int
    first: float | None


def measure(family: str, weights: str, folder: Path, rows: int) -> Line:
    """One family in one kind of weights; its files go below ``folder``."""
    loaded = _load(family, weights, folder)
    prompts = _prompts(loaded, rows)
    alone = [_run(loaded, [prompt])[0] for prompt in prompts]
    together = _run(loaded, prompts)
    parted = [
        next(i for i in range(TOKENS) if one[i : i + 1] != other[i : i + 1])
        for one, other in zip(alone, together, strict=True)
        if one != other
    ]
    first = statistics.median(parted) if parted else None
    return Line(family, weights, rows, len(parted), first)


def _load(family: str, weights: str, folder: Path) -> LoadedModel:
    *bits, dtype = weights.split("bit-")
    if bits:
        path = tiny_models.build_quantised(family, folder / weights, int(bits[0]))
    else:
        path = tiny_models.build(family, folder / weights / family)
    return load_model(str(path), cast("DtypeName", dtype))


def _prompts(loaded: LoadedModel, rows: int) -> list[Prepared]:
    rng, subject = random.Random(7), Subject(loaded)
    return [_prompt(subject, rng, pictures=n % 3 if subject.shows else 0) for n in range(rows)]


def _prompt(subject: Subject, rng: random.Random, pictures: int) -> Prepared:
    words = " ".join(rng.choice(("fox", "cat", "sun", "map")) for _ in range(rng.randrange(2, 90)))
    return subject.prepare(words, [random_picture(rng) for _ in range(pictures)])


def _run(loaded: LoadedModel, prompts: Sequence[Prepared]) -> list[list[int]]:
    """Greedy tokens; a row joins at every third step."""
    generator = BatchGenerator(
        loaded.model, loaded.processor, eos=frozenset(), max_rows=8, prefill_step=64
    )
    waiting = list(enumerate(prompts))
    tokens: list[list[int]] = [[] for _ in prompts]
    step = 0
    while waiting or generator.has_work():
        if waiting and step % 3 == 0:
            number, prepared = waiting.pop(0)
            sampling = Sampling(max_tokens=TOKENS - len(prepared.ids) % 5)
            generator.insert([Request(str(number), prepared=prepared, sampling=sampling)])
        for response in generator.next():
            if response.error is not None:
                raise response.error
            if response.token is not None:
                tokens[int(response.request_id)].append(response.token)
        step += 1
    generator.close()
    return tokens


def run(families: Sequence[str], weights: Sequence[str], rows: int) -> Iterator[Line]:
    """Line by line, since a device may take its time."""
    with tempfile.TemporaryDirectory(prefix="mlxq-equality-") as folder:
        for kind in weights:
            for family in families:
                yield measure(family, kind, Path(folder), rows)


def main() -> int:
    """Prints a row of a table for each family and kind of weights."""
    parser = argparse.ArgumentParser(prog="python -m bench.solo_equality", description=__doc__)
    parser.add_argument("--family", action="append", choices=list(tiny_models.FAMILIES))
    parser.add_argument("--weights", action="append", choices=WEIGHTS)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    place(cast("DeviceName", os.environ.get("MLXQ_DEVICE", "auto")))
    if not options.json:
        print(f"{mx.default_device()}, MLX_ENABLE_TF32={os.environ.get('MLX_ENABLE_TF32')}\n")
        print("| family | weights | rows | parted | at token |\n|---|---|---:|---:|---:|")
    families = options.family or list(tiny_models.FAMILIES)
    for line in run(families, options.weights or WEIGHTS, options.rows):
        if options.json:
            print(json.dumps(asdict(line)), flush=True)
        else:
            first = "" if line.first is None else f"{line.first:g}"
            values = (line.family, line.weights, line.rows, line.parted, first)
            print(f"| {' | '.join(map(str, values))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure what the caches save and cost: ``python -m mlxq_worker.cache.measure``.

A known picture with a new question beside a new picture; a prefix brought from the SSD beside the
same prefix computed; storing as a share of the engine's steps. What is compared runs in turn in one
run, and medians are shown, since machines drift.
"""

from __future__ import annotations

import base64
import cProfile
import io
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, cast

import numpy as np
import typer
from PIL import Image

from mlxq_schemas import Job, Sampling
from mlxq_schemas.plain import to_json
from mlxq_worker.backend import Backend, Generator
from mlxq_worker.build import build_backend
from mlxq_worker.cache.block import Block
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.measure_model import write_larger
from mlxq_worker.cache.store import BlockStore, evaluate
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.request import Request
from mlxq_worker.models.load import LoadedModel, load_model
from mlxq_worker.models.prepared import Prepared

LENGTHS: Final = (32, 64, 128, 256, 512, 1024, 2048)
_BIG: Final = 1 << 32
_WORDS: Final = ("fox", "cat", "sun", "dog", "map", "key", "cup", "hat", "box", "pen")


@dataclass(frozen=True)
class Repeat:
    """A known picture and a new question: milliseconds to the first token; ``engine``: of these,
    without preparing the input. ``vision_calls``: of all hot rounds together."""

    rounds: int
    cold_ms: float
    hot_ms: float
    ratio: float
    engine_cold_ms: float
    engine_hot_ms: float
    engine_ratio: float
    vision_calls: int


@dataclass(frozen=True)
class Restore:
    """Milliseconds to the first token behind a prefix of ``tokens``."""

    tokens: int
    recompute_ms: float
    restore_ms: float
    ratio: float


@dataclass(frozen=True)
class Storing:
    """Seconds of the engine's thread, profiled: in all steps, in storing; of that in copies for the
    SSD, and in computing the blocks' own arrays."""

    jobs: int
    steps: float
    storing: float
    offering: float
    cutting: float
    share: float
    written_blocks: int


def first_token(generator: Generator, request: Request) -> float:
    """Seconds to the first token of a request that runs alone."""
    began = time.perf_counter()
    generator.insert([request])
    first = 0.0
    while generator.has_work():
        for response in generator.next():
            if response.error is not None:
                raise response.error
            first = first or time.perf_counter() - began
    return first


def repeat(backend: Backend, side: int, rounds: int) -> Repeat:
    """Every round a new picture, then a new question about it."""
    rng = np.random.default_rng(0)
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    calls = 0
    for n in range(rounds + 1):
        url = _picture(rng, side)
        cold = _ask(backend, _question(rng), url)
        before = backend.generator.stats()["vision_calls"]
        hot = _ask(backend, _question(rng), url)
        calls += backend.generator.stats()["vision_calls"] - before
        if n:  # the first round warms up
            pairs.append((cold, hot))
    (cold, engine_cold), (hot, engine_hot) = (
        [statistics.median(times) * 1e3 for times in zip(*asked, strict=True)]
        for asked in zip(*pairs, strict=True)
    )
    ratio, engine_ratio = (
        statistics.median(hot[n] / cold[n] for cold, hot in pairs) for n in range(2)
    )
    return Repeat(
        rounds, cold, hot, ratio, engine_cold, engine_hot, engine_ratio, vision_calls=calls
    )


def _ask(backend: Backend, question: str, url: str) -> tuple[float, float]:
    """(seconds to the first token with preparing the input, the same without)."""
    began = time.perf_counter()
    job = Job.model_validate(
        {"prompt": question, "images": [url], "sampling": {"max_tokens": 1, "ignore_eos": True}}
    )
    request = backend.prepare(job, lambda _: None)
    prepared = time.perf_counter() - began
    engine = first_token(backend.generator, request)
    return prepared + engine, engine


def _picture(rng: np.random.Generator, side: int) -> str:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _question(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(6)) + "?"


def restore(loaded: LoadedModel, folder: Path, length: int, rounds: int) -> Restore:
    """A text of ``length`` tokens and one more, computed and from the SSD (in the page cache)."""
    ids = np.random.default_rng(length).integers(300, 900, length + 1).tolist()
    pairs: list[tuple[float, float]] = []
    _once(loaded, ids, _tier(folder, admit_at=1))
    for n in range(rounds + 1):
        pair = _once(loaded, ids, None), _once(loaded, ids, _tier(folder))
        if n:
            pairs.append(pair)
    middle = statistics.median
    recompute, brought = (middle(times) * 1e3 for times in zip(*pairs, strict=True))
    return Restore(length, recompute, brought, middle(b / a for a, b in pairs))


def _tier(folder: Path, admit_at: int = 2) -> DiskTier:
    return DiskTier(folder, max_bytes=_BIG, layout=LAYOUT, admit_at=admit_at)


def _once(loaded: LoadedModel, ids: list[int], disk: DiskTier | None) -> float:
    """Seconds to the first token in a generator that knows nothing but what ``disk`` holds."""
    generator = BatchGenerator(
        loaded.model,
        loaded.processor,
        prefix_cache_bytes=_BIG if disk else 0,
        identity="measure",
        disk=disk,
    )
    sampling = Sampling(max_tokens=1, ignore_eos=True)
    seconds = first_token(generator, Request("r", prepared=Prepared(ids), sampling=sampling))
    generator.close()
    return seconds


def crossover(figures: Sequence[Restore]) -> int | None:
    """The length from which on restoring was always the faster; None: not even for the longest."""
    found: int | None = None
    for figure in reversed(figures):
        if figure.ratio >= 1:
            break
        found = figure.tokens
    return found


def storing(backend: Backend, side: int, jobs: int) -> Storing:
    """Captions: one instruction, and a picture that every third job shares with the one before."""
    rng = np.random.default_rng(1)
    instruction = " ".join(rng.choice(_WORDS) for _ in range(150))
    requests: list[Request] = []
    url = ""
    for n in range(jobs):
        url = url if n % 3 == 2 else _picture(rng, side)
        image = {"type": "image_url", "image_url": {"url": url}}
        parts = [image, {"type": "text", "text": _question(rng)}]
        messages = [
            {"role": "system", "content": instruction},
            {"role": "user", "content": parts},
        ]
        fields = {"messages": messages, "sampling": {"max_tokens": 24, "ignore_eos": True}}
        requests.append(backend.prepare(Job.model_validate(fields), lambda _: None))
    generator = backend.generator
    profile = cProfile.Profile()
    generator.insert(requests)
    while generator.has_work():
        profile.runcall(generator.next)
    steps = _seconds(profile, BatchGenerator.next)
    stored = _seconds(profile, Recall.keep, Recall.keep_vision, BlockStore.use)
    return Storing(
        jobs,
        steps,
        stored,
        _seconds(profile, Block.to_host, DiskTier.wants, DiskTier.offer),
        _seconds(profile, evaluate),
        stored / steps,
        generator.stats()["disk_written_blocks"],
    )


def _seconds(profile: cProfile.Profile, *functions: Callable[..., object]) -> float:
    """Time in functions and all that they called."""
    times: dict[Any, Any] = cast("Any", pstats.Stats(profile)).stats
    total = 0.0
    for function in functions:
        code = function.__code__
        entry = times.get((code.co_filename, code.co_firstlineno, code.co_name))
        total += entry[3] if entry else 0.0
    return total


def main(
    model: Annotated[
        str | None,
        typer.Option(help="Folder or hub id; 'larger': random weights. [default: bundled]"),
    ] = None,
    side: Annotated[int, typer.Option(min=16, help="Pixels of a picture's sides.")] = 112,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds after one to warm up.")] = 9,
    jobs: Annotated[int, typer.Option(min=1, help="Captions, to see what storing costs.")] = 48,
    longest: Annotated[int, typer.Option(min=32, help="Most tokens of a prefix.")] = LENGTHS[-1],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where to write. [default: a temporary folder]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what caches save and cost on this machine."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="mlxq-cache-measure-") as made:
        place = Path(made)
        name = str(write_larger(place / "larger")) if model == "larger" else model
        config = WorkerConfig(model=name, max_rows=8, cache_dir=place / "cache", name="measure")
        backend = build_backend(config)
        again = repeat(backend, side, rounds)
        cost = storing(backend, side, jobs)
        backend.generator.close()
        loaded = load_model(name)
        prefixes = (length for length in LENGTHS if length <= longest)
        lengths = [restore(loaded, place / "prefixes", length, rounds) for length in prefixes]
    found = {"model": backend.identity.rsplit("/", 1)[-1], "side": side}
    if as_json:
        figures = {"repeat": asdict(again), "storing": asdict(cost)}
        figures |= {"restore": [asdict(one) for one in lengths], "crossover": crossover(lengths)}
        typer.echo(to_json({**found, **figures}))
        return
    typer.echo(f"{found['model']}, pictures of {side} x {side}, medians of {rounds} rounds")
    typer.echo(
        f"known picture, new question: first token after {again.hot_ms:.1f} ms, new picture "
        f"{again.cold_ms:.1f} ms, {again.ratio:.0%}; engine alone {again.engine_hot_ms:.1f} and "
        f"{again.engine_cold_ms:.1f} ms, {again.engine_ratio:.0%}; vision calls "
        f"{again.vision_calls}"
    )
    for one in lengths:
        typer.echo(
            f"prefix of {one.tokens} tokens: from SSD {one.restore_ms:.1f} ms, computed "
            f"{one.recompute_ms:.1f} ms, {one.ratio:.0%}"
        )
    typer.echo(f"restoring is faster from {crossover(lengths)} tokens on")
    typer.echo(
        f"{cost.jobs} captions: steps {cost.steps:.2f} s, storing {cost.storing:.3f} s "
        f"({cost.share:.1%}), of that copies for the SSD {cost.offering:.3f} s, cutting blocks "
        f"{cost.cutting:.3f} s; {cost.written_blocks} blocks written"
    )


if __name__ == "__main__":
    typer.run(main)

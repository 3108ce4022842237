"""Measure the batch generator: ``python -m mlxq_worker.engine.bench --model DIR``.

For each number of rows: tokens per second, time to first token, and what a decode step costs
beside a bare loop over the same model and caches (the loop does nothing but the forward pass and
an argmax). The two are measured in turn in one run, and medians are shown, since machines drift.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import mlx.core as mx
import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from mlxq_schemas import Sampling
from mlxq_schemas.plain import to_json
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.load import LoadedModel, load_model
from mlxq_worker.models.registry import adapter_for

Mix = Literal["text", "image", "mixed"]


@dataclass(frozen=True)
class Figure:
    """One line: ``ttft`` and steps in milliseconds, medians over rounds; ``ratio`` to the loop."""

    rows: int
    mix: Mix
    tokens_per_second: float
    ttft_ms: float
    step_ms: float
    bare_step_ms: float
    ratio: float


def measure(loaded: LoadedModel, rows: int, mix: Mix, tokens: int, rounds: int) -> Figure:
    """Run ``rows`` requests of ``tokens`` tokens each, ``rounds`` times, beside the bare loop."""
    adapter = adapter_for(loaded.model, loaded.processor)
    ttfts: list[float] = []
    rates: list[float] = []
    steps: list[float] = []
    bare: list[float] = []
    for n in range(rounds + 1):
        requests = make_requests(loaded, rows, mix, tokens, seed=n)
        ttft, rate, step = _run(loaded, requests, rows)
        loop = _bare_step(adapter, rows, tokens, seed=n)
        if n:  # the first round compiles and warms up
            ttfts.append(ttft)
            rates.append(rate)
            steps.append(step)
            bare.append(loop)
    middle = statistics.median
    ratio = middle(a / b for a, b in zip(steps, bare, strict=True))
    return Figure(
        rows,
        mix,
        middle(rates),
        middle(ttfts) * 1e3,
        middle(steps) * 1e3,
        middle(bare) * 1e3,
        ratio,
    )


def make_requests(
    loaded: LoadedModel, rows: int, mix: Mix, tokens: int, seed: int
) -> list[Request]:
    """Requests that run to their full length; pictures are random and all different."""
    rng = np.random.default_rng(seed)
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    requests: list[Request] = []
    for n in range(rows):
        text = " ".join(str(rng.integers(1000)) for _ in range(16))
        images = [] if mix == "text" or (mix == "mixed" and n % 2) else [_picture(seed * 997 + n)]
        parts = [*[{"type": "image"}] * len(images), {"type": "text", "text": text}]
        prompt = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        requests.append(Request(f"r{n}", prompt=prompt, images=images, sampling=sampling))
    return requests


def _picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def _run(loaded: LoadedModel, requests: Sequence[Request], rows: int) -> tuple[float, float, float]:
    """(seconds to the median row's first token, tokens per second, seconds of a decode step)."""
    generator = BatchGenerator(
        loaded.model, loaded.processor, max_rows=rows, eos=loaded.eos, context=2**31
    )
    began = time.perf_counter()
    generator.insert(requests)
    first: dict[str, float] = {}
    steps: list[float] = []
    produced = 0
    while generator.has_work():
        before = time.perf_counter()
        responses = generator.next()
        now = time.perf_counter()
        produced += sum(r.token is not None for r in responses)
        for response in responses:
            first.setdefault(response.request_id, now - began)
        if len(responses) == rows and not any(r.finished for r in responses):
            steps.append(now - before)
    total = time.perf_counter() - began
    return statistics.median(first.values()), produced / total, statistics.median(steps)


def _bare_step(adapter: Adapter, rows: int, tokens: int, seed: int) -> float:
    """Seconds of a step of the plainest pipelined greedy loop over the same model and caches."""
    prompt = np.random.default_rng(seed).integers(10, 200, 48).tolist()
    caches = [adapter.make_cache() for _ in range(rows)]
    for cache in caches:
        adapter.prefill_text(prompt, 0, cache)
        mx.eval([layer.state for layer in cache])
    merged = [type(layer[0]).merge(list(layer)) for layer in zip(*caches, strict=True)]
    last = mx.array([prompt[-1]] * rows)
    times: list[float] = []
    for n in range(tokens):
        before = time.perf_counter()
        positions = np.full(rows, len(prompt) + n, dtype=np.int32)
        following = mx.argmax(adapter.decode(last, positions, merged), axis=-1)
        mx.async_eval(following)
        np.array(last)
        last = following
        times.append(time.perf_counter() - before)
    return statistics.median(times[2:])


def main(
    model: Annotated[str | None, typer.Option(help="Folder or hub id; default: bundled.")] = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows, by commas.")] = "1,2,4,8,16,32",
    mix: Annotated[
        str, typer.Option(help="text, image or mixed; several by commas.")
    ] = "text,image",
    tokens: Annotated[int, typer.Option(help="Tokens of each row.")] = 64,
    rounds: Annotated[int, typer.Option(help="Measured rounds of each line.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Print what the batch generator does on this machine."""
    loaded = load_model(model)
    mixes: list[Mix] = [m for m in ("text", "image", "mixed") if m in mix.split(",")]
    figures = [measure(loaded, int(n), m, tokens, rounds) for m in mixes for n in rows.split(",")]
    if as_json:
        typer.echo(to_json({"model": loaded.identity, "figures": [asdict(f) for f in figures]}))
        return
    table = Table("mix", "rows", "tokens/s", "first token ms", "step ms", "bare ms", "ratio")
    for f in figures:
        cells = (f.tokens_per_second, f.ttft_ms, f.step_ms, f.bare_step_ms)
        table.add_row(f.mix, str(f.rows), *(f"{c:.2f}" for c in cells), f"{f.ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

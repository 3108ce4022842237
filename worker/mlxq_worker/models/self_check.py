"""Does an untested family give the same in a batch as alone? A few short probes tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from PIL import Image

from mlxq_worker.models import caches
from mlxq_worker.models.adapter import Adapter, Embedded
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.reading import read
from mlxq_worker.models.templates import render
from mlxq_worker.models.vision import Vision

STEPS = 4
"""Tokens that each probe generates."""

SLICE = 7
"""Prompt tokens a slice, where the model lets a prompt be sliced."""

_TEXTS = (
    "Say yes.",
    "Which of these is the largest: one, two, three or four? Name it, and say why.",
    "Describe what you see.",
)
_TOLERANCE, _LOW_PRECISION_TOLERANCE = 1e-3, 5e-2
"""Greatest difference of logits, as a share of their spread."""


@dataclass
class _Probe:
    """A prompt; after it ran alone, its logits [steps, vocab] and the tokens these chose."""

    name: str
    prepared: Prepared
    logits: npt.NDArray[np.float32]
    tokens: list[int]
    rope_delta: int
    tolerance: float

    def position(self, step: int) -> int:
        return len(self.prepared.ids) - 1 + step + self.rope_delta

    def fed(self, step: int) -> int:
        """The token that step ``step`` feeds."""
        return self.prepared.ids[-1] if step == 0 else self.tokens[step - 1]


def self_check(adapter: Adapter, processor: Any) -> str | None:
    """None if batched and sliced runs give what whole runs alone gave; else what differs.

    The rows differ in length, join at different steps, and one holds a picture if the model
    takes any. Each is fed the tokens it chose alone, and logits are compared: a wrong position
    shows there before it changes a token.
    """
    probes = [_alone(adapter, name, prompt) for name, prompt in _prompts(processor)]
    for probe in probes:
        fault = _compare(probe, 0, _whole(adapter, probe.prepared))
        if fault:
            return f"the last token fed apart: {fault}"
        sliced, _ = _prefill(adapter, probe.prepared, SLICE)
        fault = _compare(probe, 0, _step(adapter, [probe], [0], caches.merge([sliced]))[0])
        if fault:
            return f"prefill in slices: {fault}"
    fault = _seen_together(adapter, probes)
    if fault:
        return f"pictures encoded together: {fault}"
    fault = _together(adapter, probes)
    return f"in a batch: {fault}" if fault else None


def _prompts(processor: Any) -> list[tuple[str, Prepared]]:
    shows = getattr(processor, "image_processor", None) is not None
    prompts: list[tuple[str, Prepared]] = []
    for n, text in enumerate(_TEXTS):
        pictures = [_picture(n)] if shows and n > 0 else []
        name = "a prompt with a picture" if pictures else "a prompt of text"
        prompts.append(
            (name, build_inputs(processor, _templated(processor, text, len(pictures)), pictures))
        )
    return prompts


def _templated(processor: Any, text: str, images: int) -> str:
    tokenizer = getattr(processor, "tokenizer", processor)
    templates = [getattr(owner, "chat_template", None) for owner in (processor, tokenizer)]
    if not any(templates) and not images:
        return text
    content: Any = [*[{"type": "image"}] * images, {"type": "text", "text": text}]
    return render(processor, [{"role": "user", "content": content if images else text}])


def _picture(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 5 + seed, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((96 + 32 * seed, 96), Image.Resampling.NEAREST)


def _alone(adapter: Adapter, name: str, prepared: Prepared) -> _Probe:
    cache, embedded = _prefill(adapter, prepared, len(prepared.ids))
    logits = np.zeros((STEPS, 0), dtype=np.float32)
    full = embedded.embeds.dtype == mx.float32
    tolerance = _TOLERANCE if full else _LOW_PRECISION_TOLERANCE
    probe = _Probe(name, prepared, logits, [], embedded.rope_delta, tolerance)
    batch = caches.merge([cache])
    rows: list[npt.NDArray[np.float32]] = []
    for step in range(STEPS):
        rows += list(_step(adapter, [probe], [step], batch))
        probe.tokens.append(int(rows[-1].argmax()))
    probe.logits = np.stack(rows)
    return probe


def _prefill(
    adapter: Adapter, prepared: Prepared, step: int, vision: Vision | None = None
) -> tuple[list[Any], Embedded]:
    embedded, cache = adapter.embed(prepared, vision), adapter.make_cache()
    mx.eval(embedded.arrays)
    start, last = 0, len(prepared.ids) - 1
    while start < last:
        end = min(max(start + step, embedded.unsplit), last)
        adapter.prefill(prepared.ids[start:end], start, embedded, cache)
        mx.eval([layer.state for layer in cache])
        start = end
    return cache, embedded


def _whole(adapter: Adapter, prepared: Prepared) -> npt.NDArray[np.float32]:
    """Logits [vocab] after a prompt that the model was given at once, its last token included."""
    logits = adapter.feed(prepared.ids, 0, adapter.embed(prepared), adapter.make_cache())
    return read(logits[0, -1].astype(mx.float32))[0]


def _step(
    adapter: Adapter, probes: list[_Probe], steps: list[int], batch: list[Any]
) -> npt.NDArray[np.float32]:
    pairs = list(zip(probes, steps, strict=True))
    tokens = mx.array([probe.fed(step) for probe, step in pairs])
    positions = np.array([probe.position(step) for probe, step in pairs], dtype=np.int32)
    return read(adapter.decode(tokens, positions, batch).astype(mx.float32))[0]


def _seen_together(adapter: Adapter, probes: list[_Probe]) -> str | None:
    """Prompts with pictures, these encoded in as few calls as the adapter needs."""
    showing = [probe for probe in probes if probe.prepared.images]
    for group, visions in adapter.encode([probe.prepared for probe in showing]):
        for n, vision in zip(group, visions, strict=True):
            probe = showing[n]
            cache, _ = _prefill(adapter, probe.prepared, len(probe.prepared.ids), vision)
            fault = _compare(probe, 0, _step(adapter, [probe], [0], caches.merge([cache]))[0])
            if fault:
                return fault
    return None


def _together(adapter: Adapter, probes: list[_Probe]) -> str | None:
    """One row joins at each step; each leaves when its tokens are used up."""
    rows: list[_Probe] = []
    steps: list[int] = []
    batch: list[Any] = []
    waiting = list(probes)
    while waiting or rows:
        if waiting:
            rows.append(waiting.pop(0))
            steps.append(0)
            joined = caches.merge([_prefill(adapter, rows[-1].prepared, SLICE)[0]])
            if batch:
                caches.extend(batch, joined)
            else:
                batch = joined
        for probe, step, logits in zip(
            rows, steps, _step(adapter, rows, steps, batch), strict=True
        ):
            fault = _compare(probe, step, logits)
            if fault:
                return fault
        steps = [step + 1 for step in steps]
        keep = [n for n, step in enumerate(steps) if step < STEPS]
        if len(keep) < len(rows):
            rows, steps = [rows[n] for n in keep], [steps[n] for n in keep]
            for cache in batch if keep else ():
                cache.filter(mx.array(keep))
            batch = batch if keep else []
    return None


def _compare(probe: _Probe, step: int, logits: npt.NDArray[np.float32]) -> str | None:
    want = probe.logits[step]
    spread = float(want.max() - want.min())
    off = float(np.abs(want - logits).max()) / (spread or 1.0)
    if np.isfinite(off) and off <= probe.tolerance:
        return None
    return f"{probe.name} gave other logits at token {step} (off by {off:.1%} of their spread)"

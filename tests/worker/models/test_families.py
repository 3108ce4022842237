"""Every family: what its rows say depends on their own prompt and images, and on nothing else."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.generate.ar import generate_step

import tiny_models
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.registry import adapter_for
from pictures import draw

RED = draw([("red", "circle", 4), ("red", "square", 0)])
BLUE = draw([("blue", "diamond", 8)])


def reference(subject, prepared: Prepared, tokens: int) -> list[int]:
    """What mlx-vlm's own generation of one request says."""
    ids = mx.array([prepared.ids])
    arrays: dict[str, Any] = {
        name: [mx.array(v) for v in value] if isinstance(value, list) else mx.array(value)
        for name, value in prepared.arrays.items()
    }
    pixels = arrays.pop("pixel_values", None)
    steps = generate_step(
        ids,
        subject.loaded.model,
        pixels,
        mx.ones_like(ids),
        max_tokens=tokens,
        temperature=0.0,
        **arrays,
    )
    return [int(token) for token, *_ in steps]


def test_a_row_alone_says_what_the_library_says(subject):
    for prepared in subject.prompts():
        # The library's loop keeps positions on the module; a row of ours never looks there.
        assert subject.alone([prepared]) == [reference(subject, prepared, 12)]


@pytest.mark.parametrize(("max_rows", "prefill_step"), [(8, 2048), (2, 5)])
def test_joined_rows_say_what_each_says_alone(subject, max_rows, prefill_step):
    prompts = subject.prompts()
    together = subject.run(prompts, 20, max_rows=max_rows, prefill_step=prefill_step)
    assert together == subject.alone(prompts, 20)


def test_greedy_text_varies(subject):
    """Else equal tokens would prove little."""
    for tokens in subject.alone(subject.prompts(), 24):
        assert len(set(tokens)) >= 6


def test_each_row_speaks_about_its_own_image(showing):
    words = "Describe the image in detail."
    red, blue = showing.prepare(words, [RED]), showing.prepare(words, [BLUE])
    said_red, said_blue = showing.alone([red, blue])
    assert said_red != said_blue
    assert showing.run([red, blue]) == [said_red, said_blue]
    assert red.ids == blue.ids
    swapped = [replace(red, arrays=blue.arrays), replace(blue, arrays=red.arrays)]
    assert showing.run(swapped) == [said_blue, said_red]


def test_the_order_of_two_images_matters(showing):
    first, second = (
        showing.prepare("Compare them.", images) for images in ([RED, BLUE], [BLUE, RED])
    )
    assert showing.alone([first]) != showing.alone([second])


def module_state(model) -> dict[str, Any]:
    """All that modules hold: parameters and attributes, by identity."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in [*module.items(), *vars(module).items()]:
            state[f"{path}.{name}"] = value
    return state


def test_nothing_of_a_row_stays_on_the_model(subject):
    prompts = subject.prompts()
    subject.run(prompts[:2], 3)  # some layers keep a rearranged copy of their weights
    before = module_state(subject.loaded.model)
    subject.run(prompts, 3)
    after = module_state(subject.loaded.model)
    assert {n for n in after if n not in before or after[n] is not before[n]} == set()


def test_inputs_are_plain_arrays_made_in_any_thread(showing):
    made: list[Prepared] = []
    thread = threading.Thread(
        target=lambda: made.append(showing.prepare("Look:", [RED, BLUE])), daemon=True
    )
    thread.start()
    thread.join(30)
    for value in made[0].arrays.values():
        for array in value if isinstance(value, list) else [value]:
            assert isinstance(array, np.ndarray)
            assert array.dtype != object
    assert showing.alone(made, 4) == showing.alone([showing.prepare("Look:", [RED, BLUE])], 4)


def test_image_pieces_in_the_prompt_are_known_as_media(showing):
    adapter = adapter_for(showing.loaded.model)
    counts = [
        sum(token in adapter.media_tokens for token in showing.prepare("Hm.", images).ids)
        for images in ([], [RED], [RED, RED])
    ]
    assert counts[0] == 0
    assert counts[2] == 2 * counts[1] > 0


@pytest.mark.parametrize("name", list(tiny_models.FAMILIES))
def test_in_bfloat16_batched_logits_are_near_to_those_alone(load, name):
    """Half precision rounds by shape of the batch: a token may differ where two are near a tie.

    Teacher-forced logits stay within 3 % of their spread, and 9 of 10 first tokens are equal.
    """
    subject = load(name, "bfloat16")
    prompts = subject.prompts()
    seen: dict[bool, list[np.ndarray]] = {}
    for batched in (False, True):
        groups = [prompts] if batched else [[prompt] for prompt in prompts]
        seen[batched] = [row for group in groups for row in first_logits(subject, group)]
    pairs = list(zip(seen[False], seen[True], strict=True))
    off = [np.abs(a - b).max() / (a.max() - a.min()) for a, b in pairs]
    assert max(off) < 0.03
    assert sum(a.argmax() == b.argmax() for a, b in pairs) >= 0.9 * len(pairs) - 1


def first_logits(subject, prompts: list[Prepared]) -> list[np.ndarray]:
    """Logits after each prompt, decoded together."""
    from mlxq_worker.models import caches

    adapter = adapter_for(subject.loaded.model)
    filled, positions = [], []
    for prepared in prompts:
        embedded, cache = adapter.embed(prepared), adapter.make_cache()
        last = len(prepared.ids) - 1
        if last:
            adapter.prefill(prepared.ids[:last], 0, embedded, cache)
        mx.eval([layer.state for layer in cache])
        filled.append(cache)
        positions.append(last + embedded.rope_delta)
    tokens = mx.array([prepared.ids[-1] for prepared in prompts])
    logits = adapter.decode(tokens, np.array(positions, dtype=np.int32), caches.merge(filled))
    assert logits.dtype == mx.bfloat16
    return list(np.array(logits.astype(mx.float32)))

"""Pictures of several rows in one call of the vision encoder: as if each had been alone."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine import BatchGenerator, Request
from mlxq_worker.models.registry import adapter_for
from pictures import draw

WIDE = draw([("red", "circle", 4)], (128, 96))
TALL = draw([("blue", "square", 2)], (96, 128))
BIG = draw([("green", "diamond", 8)], (128, 96))
WORDS = "Describe the image in detail."

ALONE = {"gemma4": "lists of pictures", "pixtral": "padded to the largest of their own prompt"}
"""Families whose pictures of unlike shapes are encoded prompt by prompt."""


def prompts(subject):
    return [subject.prepare(WORDS, images) for images in ([WIDE], [BIG], [TALL, WIDE], [BIG])]


def test_encoded_together_equals_encoded_alone(showing):
    adapter = adapter_for(showing.loaded.model)
    rows = prompts(showing)
    together = {}
    calls = 0
    for group, visions in adapter.encode(rows):
        calls += 1
        together |= dict(zip(group, visions, strict=True))
    assert sorted(together) == [0, 1, 2, 3]
    family = showing.loaded.model.config.model_type
    assert calls == (2 if family in ALONE else 1)
    for n, row in enumerate(rows):
        alone = adapter.seen(row)
        assert len(alone.deepstack) == len(together[n].deepstack)
        pairs = [(alone.features, together[n].features)]
        pairs += zip(alone.deepstack, together[n].deepstack, strict=True)
        for a, b in pairs:
            assert a.shape == b.shape
            assert np.allclose(np.array(a), np.array(b), rtol=1e-4, atol=1e-5)


def test_a_joined_prompt_says_what_it_says_alone(showing):
    rows = prompts(showing)
    generator = BatchGenerator(showing.loaded.model, showing.loaded.processor, eos=frozenset())
    sampling = Sampling(max_tokens=12)
    generator.insert([Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(rows)])
    said: list[list[int]] = [[] for _ in rows]
    while generator.has_work():
        for response in generator.next():
            said[int(response.request_id)].append(response.token)
    assert said == showing.alone(rows)
    stats = generator.stats()
    assert (stats["images"], stats["images_recalled"]) == (4, 1)  # one prompt comes twice
    assert stats["vision_calls"] < len(rows)
    assert stats["vision_seconds"] > 0


def test_a_picture_that_breaks_the_call_fails_alone(load):
    subject = load("qwen2_vl")
    good = prompts(subject)
    broken = replace(
        good[0], arrays={**good[0].arrays, "image_grid_thw": np.array([[1, 0, 0]], dtype=np.int64)}
    )
    rows = [good[0], broken, *good[1:]]
    generator = BatchGenerator(subject.loaded.model, subject.loaded.processor, eos=frozenset())
    sampling = Sampling(max_tokens=12)
    generator.insert([Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(rows)])
    said: list[list[int]] = [[] for _ in rows]
    errors = {}
    while generator.has_work():
        for response in generator.next():
            if response.error:
                errors[response.request_id] = response.error.code
            else:
                said[int(response.request_id)].append(response.token)
    assert errors == {"1": "generation_failed"}
    assert said[:1] + said[2:] == subject.alone(good)


def test_encoding_adds_no_more_than_a_slice_holds(load):
    """Pictures are encoded as far as the prompts go that begin in this step."""
    subject = load("qwen2_vl")
    rows = [subject.prepare(WORDS, [WIDE.rotate(n)]) for n in range(6)]
    each = len(rows[0].ids)
    generator = BatchGenerator(
        subject.loaded.model, subject.loaded.processor, prefill_step=2 * each, eos=frozenset()
    )
    sampling = Sampling(max_tokens=1)
    generator.insert([Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(rows)])
    generator.next()
    assert 1 <= generator.stats()["images"] <= 3
    while generator.has_work():
        generator.next()
    assert generator.stats()["images"] == 6


def test_features_are_their_rows_own(load):
    """The media tokens' rows of a prompt hold its features; text rows hold the text's."""
    subject = load("qwen3_vl")
    adapter = adapter_for(subject.loaded.model)
    prepared = subject.prepare(WORDS, [WIDE])
    vision = adapter.seen(prepared)
    embeds = adapter.embed(prepared, vision).embeds[0]
    places = adapter.media_places(prepared.ids)
    assert mx.array_equal(embeds[places], vision.features)
    table = subject.loaded.model.language_model.model.embed_tokens
    others = [n for n in range(len(prepared.ids)) if n not in places.tolist()]
    assert mx.array_equal(embeds[mx.array(others)], table(mx.array(prepared.ids))[mx.array(others)])


@pytest.mark.parametrize("name", ["qwen2_vl", "llava"])
def test_other_pictures_give_other_features(load, name):
    subject = load(name)
    adapter = adapter_for(subject.loaded.model)
    a, b = (adapter.seen(subject.prepare(WORDS, [image])).features for image in (WIDE, BIG))
    assert not np.allclose(np.array(a), np.array(b), atol=1e-3)

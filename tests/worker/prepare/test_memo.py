"""Inputs prepared before are those that would be prepared now."""

from __future__ import annotations

import numpy as np
import pytest

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.prepare.memo import Memo
from pictures import draw

RED = draw([("red", "circle", 4)], (128, 96))
BLUE = draw([("blue", "square", 2)], (96, 128))
WORDS = ("Describe it.", "  \n\nWhy?  ", "Ünïcode 猫", "a" * 50)
TAKES_OVER = {
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "llava",
    "pixtral",
    "smolvlm",
    "idefics3",
}
"""Families in which the same picture with other words is not processed again."""


def prepare(subject, memo, words, images):
    text = subject.text(words, len(images))
    media = tuple(images)
    found = memo.find(text, media) if images else None
    fresh = build_inputs(subject.loaded.processor, text, list(images.values()), media)
    memo.keep(text, fresh)
    return found, fresh


def assert_same(found, fresh):
    assert found.ids == fresh.ids
    assert (found.media, found.images) == (fresh.media, fresh.images)
    assert found.arrays.keys() == fresh.arrays.keys()
    for name, value in found.arrays.items():
        pairs = [(value, fresh.arrays[name])]
        if isinstance(value, list):
            pairs = list(zip(value, fresh.arrays[name], strict=True))
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_what_is_found_is_what_would_be_made(showing):
    memo = Memo(showing.loaded.processor, 1 << 26)
    shown = [{"red": RED}, {"blue": BLUE}, {"red": RED, "blue": BLUE}]
    hits = 0
    for _ in range(2):
        for words in WORDS:
            for images in shown:
                found, fresh = prepare(showing, memo, words, images)
                if found is not None:
                    hits += 1
                    assert_same(found, fresh)
    assert memo.counts["same"] == len(WORDS) * len(shown)
    again = memo.counts["same_picture"]
    assert hits == memo.counts["same"] + again
    family = showing.loaded.model.config.model_type
    assert again == (2 * (len(WORDS) - 1) if family in TAKES_OVER else 0)


def test_a_placeholder_in_the_words_is_refused_all_the_same(load):
    subject = load("qwen3_vl")
    memo = Memo(subject.loaded.processor, 1 << 26)
    prepare(subject, memo, "Describe it.", {"red": RED})
    text = subject.text("Describe <|image_pad|> it.", 1)
    with pytest.raises(InvalidJob, match="placeholders"):
        memo.find(text, ("red",))


def test_memory_is_bounded(load):
    subject = load("qwen3_vl")
    memo = Memo(subject.loaded.processor, 1_000_000)
    for n in range(40):
        prepare(subject, memo, f"Number {n}.", {f"picture {n}": RED})
        assert memo.nbytes <= 1_000_000
    assert memo.find(subject.text("Number 39.", 1), ("picture 39",)) is not None
    assert memo.find(subject.text("Number 0.", 1), ("picture 0",)) is None
    off = Memo(subject.loaded.processor, 0)
    prepare(subject, off, "Hi.", {"red": RED})
    assert off.find(subject.text("Hi.", 1), ("red",)) is None

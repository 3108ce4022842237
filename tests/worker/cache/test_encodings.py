"""Equal pictures are encoded once, whoever shows them and however they come."""

from __future__ import annotations

import random

import pytest

from cache_session import BLUE, RED, Session, prepare, text
from pictures import COLORS, SHAPES, draw

PICTURES = {
    f"{color} {shape}": draw([(color, shape, 4)])
    for color in list(COLORS)[:4]
    for shape in SHAPES[:2]
}


def asked(subject, questions: int):
    """Eight pictures, each asked so much, in any order."""
    prompts = [
        prepare(subject, f"{text(seed, 6)}?", {name: picture})
        for name, picture in PICTURES.items()
        for seed in range(questions)
    ]
    random.Random(2).shuffle(prompts)
    return prompts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_rows": 3},
        {"prefill_step": 64, "mixed_step": 32},
        {"prefix_cache_bytes": 0},
        {"prefix_cache_bytes": 0, "prefill_step": 64, "mixed_step": 32},
    ],
    ids=str,
)
def test_eight_pictures_are_encoded_eight_times(load, options):
    subject = load("qwen3_vl")
    prompts = asked(subject, 8)
    assert len(PICTURES) == 8
    session = Session(subject, **options)
    assert session.ask(*prompts, tokens=3) == subject.alone(prompts, 3)
    stats = session.generator.stats()
    assert (stats["images"], stats["images_recalled"]) == (8, 56)


@pytest.mark.parametrize("cap", [0, 100], ids=["off", "too small"])
def test_rows_that_begin_together_share_what_is_encoded_without_a_cache_too(showing, cap):
    session = Session(showing, prefix_cache_bytes=0, feature_cache_bytes=cap, prefill_step=4096)
    prompts = [
        prepare(showing, f"{text(seed, 6)}?", {"red": RED} if seed % 2 else {"blue": BLUE})
        for seed in range(6)
    ]
    assert session.ask(*prompts, tokens=4) == showing.alone(prompts, 4)
    assert session.generator.stats()["images"] == 2


def test_rows_that_begin_later_share_it_too_without_a_cache(load):
    """The slice has room for one row; the others wait for theirs, and show the same picture."""
    subject = load("qwen3_vl")
    session = Session(subject, prefix_cache_bytes=0, feature_cache_bytes=0, prefill_step=48)
    prompts = [prepare(subject, f"{text(seed, 40)}?", {"red": RED}) for seed in range(5)]
    assert session.ask(*prompts, tokens=4) == subject.alone(prompts, 4)
    assert session.generator.stats()["images"] == 1


def test_a_picture_kept_meanwhile_is_found_though_no_prefix_was(load):
    """A row looked up before the picture was there; nothing of a prefix was stored since."""
    subject = load("qwen3_vl")
    session = Session(subject, prefix_cache_bytes=0, prefill_step=48)
    recall = session.generator._recall
    first, second = (prepare(subject, f"{text(seed, 40)}?", {"red": RED}) for seed in (1, 2))
    find, looked = recall._find, []

    def watch(row, known):
        find(row, known)
        looked.append((row.request_id, row.vision is not None))

    recall._find = watch
    # The longer one waits, looked up, while the other's picture is encoded alone.
    session.generator._prefill.encode = lambda *_: None
    assert session.ask(first, second) == subject.alone([first, second], 10)
    assert ("2", False) in looked
    assert ("2", True) in looked
    assert session.generator.stats()["images"] == 1

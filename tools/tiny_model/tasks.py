"""The mix of tasks that the model is trained on, and the tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import tasks_text as text
import tasks_vision as vision
from chat import Chat

Maker = Callable[[random.Random, str], Chat]

# name: (maker, share of the training samples)
MAIN: dict[str, tuple[Maker, float]] = {
    "caption": (vision.caption, 17),
    "detail": (vision.detail, 12),
    "json": (vision.as_json, 5),
    "vqa": (vision.vqa, 20),
    "multi": (vision.multi, 12),
    "turns": (vision.turns, 6),
    "video": (vision.video, 5),
    "cross": (vision.cross, 4),
    "recall": (text.recall, 14),
    "mixed": (text.mixed, 6),
    "list": (text.word_list, 5),
    "count": (text.count, 2),
    "repeat": (text.repeat, 5),
    "name": (text.name, 1.5),
    "no_image": (text.no_image, 2),
    "off_topic": (text.off_topic, 1.5),
}
LONG: dict[str, tuple[Maker, float]] = {
    "recall_long": (text.recall_long, 5),
    "under_text": (vision.under_text, 5),
    "turns_long": (partial(vision.turns, longest=200), 1),
}


def _counted(rng: random.Random, split: str) -> Chat:
    return vision.caption(rng, split, rng.choice((1, 2, 3)))


TESTS: dict[str, Maker] = {
    "caption": _counted,
    "detail": vision.detail,
    "json": vision.as_json,
    "count_shapes": partial(vision.vqa, questions=1, kind="count_all"),
    "color": partial(vision.vqa, questions=1, kind="color_of"),
    "vqa": partial(vision.vqa, questions=1),
    "which_image": vision.which,
    "multi": partial(vision.multi, questions=1),
    "turns": vision.turns,
    "video": vision.video,
    "cross": vision.cross,
    "mixed": text.mixed,
    "under_text": vision.under_text,
    "recall": partial(text.recall, questions=1),
    "recall_long": text.recall_long,
    "list": text.word_list,
    "count": text.count,
    "repeat": text.repeat,
    "name": text.name,
    "no_image": text.no_image,
    "off_topic": text.off_topic,
}


def sample(rng: random.Random, long: bool = False) -> Chat:
    """Draw one training sample."""
    pool = LONG if long else MAIN
    makers, weights = zip(*pool.values(), strict=True)
    return rng.choices(makers, weights)[0](rng, "train")

"""Questions about a scene and their answers.

Each maker returns (question, brief answer, full answer), or None where it does not fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from language import QA, article, colour, join, label, plural, where
from scene import BACKGROUNDS, CELLS, COLORS, SHAPES, Scene
from words import NUMBERS

Question = tuple[str, str, str] | None
Maker = Callable[[random.Random, Scene], Question]


def _count_all(rng: random.Random, scene: Scene) -> Question:
    count = len(scene.items)
    asks = (
        "How many shapes are there?",
        "How many shapes?",
        "Count the shapes.",
        "How many objects are in the image?",
        "How many shapes are in the picture?",
        "How many shapes do you see?",
        "How many shapes can you see?",
        "What is the number of shapes?",
        "How many objects are there?",
        "How many things are there?",
    )
    return (
        rng.choice(asks),
        NUMBERS[count],
        f"there {'is' if count == 1 else 'are'} {NUMBERS[count]} {plural('shape', count)}",
    )


def _count_some(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if rng.random() < 0.5:
        color = item.color if rng.random() < 0.7 else rng.choice(tuple(COLORS))
        count, what = sum(i.color == color for i in scene.items), f"{color} shape"
    else:
        what = item.shape if rng.random() < 0.7 else rng.choice(SHAPES)
        count = sum(i.shape == what for i in scene.items)
    asks = (
        "How many {} are there?",
        "How many {}?",
        "How many {} are in the image?",
        "Count the {}.",
        "How many {} do you see?",
    )
    full = f"there {'is' if count == 1 else 'are'} {NUMBERS[count]} {plural(what, count)}"
    return rng.choice(asks).format(plural(what, 2)), NUMBERS[count], full


def _color_of(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if sum(i.shape == item.shape for i in scene.items) > 1:
        return None
    what = "shape" if len(scene.items) == 1 and rng.random() < 0.3 else item.shape
    asks = (
        "What {1} is the {0}?",
        "What is the {1} of the {0}?",
        "Which {1} is the {0}?",
        "What {1} does the {0} have?",
        "What's the {1} of the {0}?",
        "Tell me the {1} of the {0}.",
        "Which {1} does the {0} have?",
        "The {0} has what {1}?",
        "{1} of the {0}?",
        "Name the {1} of the {0}.",
    )
    return rng.choice(asks).format(what, colour(rng)), item.color, f"the {what} is {item.color}"


def _shape_of(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if sum(i.color == item.color for i in scene.items) > 1:
        return None
    if len(scene.items) == 1 and rng.random() < 0.3:
        return (
            rng.choice(
                (
                    "What shape is it?",
                    "Which shape is it?",
                    "What shape is this?",
                    "What shape is in the image?",
                )
            ),
            item.shape,
            f"the shape is {article(item.shape)}",
        )
    asks = (
        "What shape is {}?",
        "Which shape is {}?",
        "What is the {} shape?",
        "What is the {} object?",
        "What kind of shape is {}?",
        "What shape is the {} object?",
    )
    return (
        rng.choice(asks).format(item.color),
        item.shape,
        f"the {item.color} shape is {article(item.shape)}",
    )


def _place_of(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if item.cell is None:
        return None
    what = label(item)
    if sum(i.shape == item.shape for i in scene.items) == 1 and rng.random() < 0.4:
        what = item.shape
    asks = (
        "Where is the {}?",
        "What is the position of the {}?",
        "Where's the {}?",
        "Where is the {} in the image?",
        "Locate the {}.",
        "Position of the {}?",
    )
    return rng.choice(asks).format(what), CELLS[item.cell], f"the {what} is {where(item)}"


def _size_of(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if item.size is None:
        return None
    what = label(item)
    if sum(i.shape == item.shape for i in scene.items) == 1 and rng.random() < 0.4:
        what = item.shape
    asks = (
        "What size is the {}?",
        "How big is the {}?",
        "Is the {} small or large?",
        "How large is the {}?",
        "What is the size of the {}?",
    )
    return rng.choice(asks).format(what), item.size, f"the {what} is {item.size}"


def _background(rng: random.Random, scene: Scene) -> Question:
    if scene.background is None:
        return None
    asks = (
        "What {} is the background?",
        "What is the background {}?",
        "Which background?",
        "What {} is behind the shapes?",
        "What is the {} of the background?",
        "Background {}?",
        "Which {} is the background?",
    )
    return (
        rng.choice(asks).format(colour(rng)),
        scene.background,
        f"the background is {scene.background}",
    )


def _is_there(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    shape, color = (
        (item.shape, item.color)
        if rng.random() < 0.5
        else (rng.choice(SHAPES), rng.choice(tuple(COLORS)))
    )
    if rng.random() < 0.5:
        found, what = (
            any((i.shape, i.color) == (shape, color) for i in scene.items),
            f"{color} {shape}",
        )
    else:
        found, what = any(i.shape == shape for i in scene.items), shape
    asks = (
        "Is there {}?",
        "Is there {} in the image?",
        "Do you see {}?",
        "Can you see {}?",
        "Does the image have {}?",
        "Does the picture show {}?",
        "Does the image contain {}?",
    )
    full = f"yes, there is {article(what)}" if found else f"no, there is no {what}"
    return rng.choice(asks).format(article(what)), "yes" if found else "no", full


def _is_colored(rng: random.Random, scene: Scene) -> Question:
    item = rng.choice(scene.items)
    if sum(i.shape == item.shape for i in scene.items) > 1:
        return None
    color = item.color if rng.random() < 0.5 else rng.choice(tuple(COLORS))
    right = color == item.color
    full = f"yes, the {item.shape} is {color}" if right else f"no, the {item.shape} is {item.color}"
    return f"Is the {item.shape} {color}?", "yes" if right else "no", full


def _absent(rng: random.Random, scene: Scene) -> Question:
    shape = rng.choice([s for s in SHAPES if all(i.shape != s for i in scene.items)])
    asks = (
        "What {1} is the {0}?",
        "What is the {1} of the {0}?",
        "Which {1} is the {0}?",
        "Where is the {0}?",
    )
    answer = f"there is no {shape}"
    return rng.choice(asks).format(shape, colour(rng)), answer, answer


def _all_of(rng: random.Random, scene: Scene) -> Question:
    if rng.random() < 0.5:
        answer = join(list(dict.fromkeys(item.color for item in scene.items)))
        asks = (
            "Which {}s are in the image?",
            "What {}s are there?",
            "List the {}s.",
            "What {}s do you see?",
            "Name the {}s.",
        )
        return rng.choice(asks).format(colour(rng)), answer, answer
    answer = join(list(dict.fromkeys(item.shape for item in scene.items)))
    return (
        rng.choice(
            (
                "Which shapes are in the image?",
                "What shapes are there?",
                "List the shapes.",
                "What shapes do you see?",
                "Name the shapes.",
            )
        ),
        answer,
        answer,
    )


def _is_related(rng: random.Random, scene: Scene) -> Question:
    if len(scene.items) < 2:
        return None
    one, other = rng.sample(scene.items, 2)
    if rng.random() < 0.5:
        gap, words = other.y - one.y, ("above", "below")
    else:
        gap, words = other.x - one.x, ("left of", "right of")
    if abs(gap) < 0.15:
        return None
    word = rng.choice(words)
    right = (gap > 0) == (word == words[0])
    asked = word if " " not in word or rng.random() < 0.6 else "to the " + word
    full = (
        f"yes, the {label(one)} is {word} the {label(other)}"
        if right
        else f"no, the {label(one)} is not {word} the {label(other)}"
    )
    return f"Is the {label(one)} {asked} the {label(other)}?", "yes" if right else "no", full


def _what_is_beside(rng: random.Random, scene: Scene) -> Question:
    if len(scene.items) != 2:
        return None
    first, second = scene.items
    words = ("left of", "right of") if scene.rows[0] == scene.rows[1] else ("above", "below")
    asked, answer, word = (
        (second, first, words[0]) if rng.random() < 0.5 else (first, second, words[1])
    )
    what = label(asked) if first.shape == second.shape or rng.random() < 0.5 else asked.shape
    name = article(label(answer))
    return (
        rng.choice(("What is {} the {}?", "Which shape is {} the {}?", "What's {} the {}?")).format(
            word, what
        ),
        name,
        f"{name} is {word} the {what}",
    )


def _larger(rng: random.Random, scene: Scene) -> Question:
    if len(scene.items) != 2 or scene.items[0].shape == scene.items[1].shape:
        return None
    small, large = sorted(scene.items, key=lambda item: item.radius)
    if large.radius < 1.4 * small.radius:
        return None
    word, item = rng.choice((("larger", large), ("bigger", large), ("smaller", small)))
    answer = f"the {item.shape}"
    return (
        rng.choice((f"Which shape is {word}?", f"Which one is {word}?", f"Which is {word}?")),
        answer,
        f"{answer} is {word}",
    )


QUESTIONS: tuple[tuple[Maker, float], ...] = (
    (_count_all, 2.5),
    (_count_some, 1.2),
    (_color_of, 3),
    (_shape_of, 2),
    (_place_of, 2.2),
    (_size_of, 2),
    (_background, 1.2),
    (_is_there, 1.5),
    (_is_colored, 0.8),
    (_absent, 0.8),
    (_all_of, 1.0),
    (_is_related, 2.5),
    (_what_is_beside, 1.2),
    (_larger, 0.7),
)
KINDS = {make.__name__.lstrip("_"): make for make, _ in QUESTIONS}
_MAKERS, _WEIGHTS = zip(*QUESTIONS, strict=True)


def question(rng: random.Random, scene: Scene, full: bool = False, kind: str | None = None) -> QA:
    """Draw a question and its answer; `full` asks for an answer in a sentence.

    A `kind` that does not fit the scene gives way to another one.
    """
    for attempt in range(1000):
        make = KINDS[kind] if kind and attempt < 30 else rng.choices(_MAKERS, _WEIGHTS)[0]
        made = make(rng, scene)
        if made:
            text, brief, sentence = made
            text = text[0].upper() + text[1:]
            if "gray" in text and rng.random() < 0.3:
                text = text.replace("gray", "grey")
            return text, sentence if full else brief
    raise RuntimeError("no question fits the scene")


def fits(scene: Scene, kind: str) -> bool:
    """Tell whether a question of this kind can surely be asked about the scene."""
    return all(KINDS[kind](random.Random(seed), scene) for seed in range(12))


assert set(BACKGROUNDS) <= set(COLORS)  # backgrounds are named with the colours' words

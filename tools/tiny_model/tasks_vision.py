"""Tasks about pictures and clips.  Every maker takes (rng, split) and returns a chat."""

from __future__ import annotations

import random
import zlib
from functools import partial

import language as lang
from chat import Chat, Clip, Part, Picture, Turn, answer, ask
from draw import degrade, paint, paint_clip, random_look
from layout import FRAMES, MAX_VIDEO_PIXELS, MIN_VIDEO_PIXELS
from questions import fits, question
from scene import BACKGROUNDS, COLORS, SHAPES, Scene, random_scene
from words import GENERIC_SYSTEM, NUMBERS, ORDINALS, code, filler, table_text

BRIEF_SYSTEM = (
    "Answer briefly.",
    "Reply with one word.",
    "Be brief.",
    "Answer with a single word.",
)
FULL_SYSTEM = ("Answer in full sentences.", "Use full sentences.", "Reply with a full sentence.")
SMALL_SIZES = (
    (64, 64),
    (64, 64),
    (80, 64),
    (64, 80),
    (96, 64),
    (80, 80),
    (112, 112),
    (100, 60),
    (128, 128),
    (224, 224),
)
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "still": (0, 0)}


def picture(rng: random.Random, scene: Scene) -> Picture:
    """Paint a scene in a random way."""
    return Picture(degrade(rng, paint(scene, random_look(rng))))


def system(rng: random.Random, longest: int = 64) -> Chat:
    """Return no system turn, a plain one, or one of up to `longest` unrelated words."""
    kind = rng.random()
    if kind < 0.45:
        return []
    if kind < 0.75:
        return [Turn("system", [rng.choice(GENERIC_SYSTEM)])]
    head = rng.choice(GENERIC_SYSTEM) + " " if rng.random() < 0.5 else ""
    return [Turn("system", [head + filler(rng, max(2, round(longest ** rng.random())))])]


def styled(rng: random.Random) -> tuple[Chat, bool]:
    """Return system turns for a question, and whether a full sentence is wanted."""
    kind = rng.random()
    if kind < 0.15:
        head = (
            filler(rng, rng.randint(4, 30)) + "\n"
            if rng.random() < 0.15
            else rng.choice(("", "", "You are a helpful assistant. "))
        )
        return [Turn("system", [head + rng.choice(FULL_SYSTEM)])], True
    if kind < 0.3:
        return [Turn("system", [rng.choice(BRIEF_SYSTEM)])], False
    return system(rng), False


def shown(rng: random.Random, text: str, *media: Part) -> Turn:
    """Build a user turn whose media stand before, after or amid the text."""
    text = lang.sloppy(rng, text)
    kind = rng.random()
    if kind < 0.68:
        return Turn("user", [*media, text])
    if kind < 0.94 or not text:
        return Turn("user", [text, *media])
    opening = rng.choice(
        (
            "Look at this: ",
            "Here is an image.",
            "Image: ",
            "Question about this picture:\n",
            "Please look. ",
        )
    )
    return Turn("user", [opening, *media, text])


def caption(rng: random.Random, split: str, count: int | None = None) -> Chat:
    """Ask for the short caption of one picture."""
    scene = random_scene(rng, split, count)
    return [
        *system(rng),
        shown(rng, lang.caption_ask(rng), picture(rng, scene)),
        answer(lang.caption(scene)),
    ]


def detail(rng: random.Random, split: str) -> Chat:
    """Ask for the long caption."""
    scene = random_scene(rng, split, named=True)
    return [
        *system(rng),
        shown(rng, lang.detail_ask(rng), picture(rng, scene)),
        answer(lang.detail(scene)),
    ]


def as_json(rng: random.Random, split: str) -> Chat:
    """Ask for the scene as JSON."""
    while (scene := random_scene(rng, split)).background is None:
        pass
    return [
        *system(rng),
        shown(rng, lang.json_ask(rng), picture(rng, scene)),
        answer(lang.as_json(scene)),
    ]


def vqa(
    rng: random.Random,
    split: str,
    questions: int | None = None,
    kind: str | None = None,
    plain: bool = False,
) -> Chat:
    """Ask one or several questions about one picture; `plain` leaves the system prompt out."""
    scene = random_scene(rng, split, named=rng.random() < 0.3)
    while kind and not fits(scene, kind):
        scene = random_scene(rng, split)
    chat, full = ([], False) if plain or kind else styled(rng)
    for index in range(questions or rng.choice((1, 1, 2, 3, 4))):
        if questions is None and rng.random() < 0.1:
            text, reply = lang.caption_ask(rng) or "Describe.", lang.caption(scene)
        else:
            text, reply = question(rng, scene, full, kind)
            if not full and rng.random() < 0.08:
                text += rng.choice(
                    (
                        " Answer with one word.",
                        " Answer briefly.",
                        " One word.",
                        " Just the answer.",
                    )
                )
        first = index == 0
        chat += [
            shown(rng, text, picture(rng, scene)) if first else ask(lang.sloppy(rng, text)),
            answer(reply),
        ]
    return chat


def _which(rng: random.Random, scenes: list[Scene]) -> lang.QA | None:
    index = rng.randrange(len(scenes))
    item = rng.choice(scenes[index].items)
    what, test = rng.choice(
        (
            (item.shape, lambda i: i.shape == item.shape),
            (item.shape, lambda i: i.shape == item.shape),
            (f"{item.color} shape", lambda i: i.color == item.color),
            (lang.label(item), lambda i: (i.shape, i.color) == (item.shape, item.color)),
        )
    )
    if sum(any(map(test, scene.items)) for scene in scenes) != 1:
        return None
    named = rng.choice((f"the {what}", lang.article(what)))
    thing = rng.choice(("image", "image", "image", "picture", "photo"))
    asks = (
        f"Which {thing} has {named}?",
        f"Which {thing} shows {named}?",
        f"In which {thing} is {named}?",
        f"Which {thing} contains {named}?",
        f"Which one has {named}?",
        f"Which of the {thing}s has {named}?",
        f"In which {thing} do you see {named}?",
        f"Which {thing} is the one with {named}?",
        f"Where is {named}, in the first or the second {thing}?",
        f"Is {named} in the first or the second {thing}?",
    )[: 10 if index < 2 else 8]
    return rng.choice(asks), f"the {ORDINALS[index]} image"


def _about_one(rng: random.Random, scenes: list[Scene]) -> lang.QA:
    index = rng.randrange(len(scenes))
    one = rng.choice(
        (
            f"the {ORDINALS[index]} image",
            f"the {ORDINALS[index]} picture",
            f"image {index + 1}",
            f"picture {index + 1}",
        )
    )
    if rng.random() < 0.65:
        asks = (
            "Describe {}.",
            "What is in {}?",
            "Caption {}.",
            "What does {} show?",
            "What do you see in {}?",
        )
        return rng.choice(asks).format(one), lang.caption(scenes[index])
    text, reply = question(
        rng, scenes[index], kind=rng.choice(("count_all", "color_of", "shape_of"))
    )
    if " in the " in text or " are there" in text or text.endswith((".", "?")) is False:
        return f"How many shapes are in {one}?", NUMBERS[len(scenes[index].items)]
    return f"{text[:-1]} in {one}{text[-1]}", reply


def _about_all(rng: random.Random, scenes: list[Scene]) -> lang.QA:
    if rng.random() < 0.5:
        return rng.choice(
            (
                "How many images are there?",
                "How many images?",
                "How many pictures are there?",
                "Count the images.",
            )
        ), NUMBERS[len(scenes)]
    both = "both" if len(scenes) == 2 else "all"
    asks = (
        f"Describe {both} images.",
        f"Caption {both} images.",
        "Describe the images.",
        "Describe each image.",
        f"Describe {both} pictures.",
        "What is in the images?",
    )
    return rng.choice(asks), "; ".join(
        f"the {word} image: {lang.caption(scene)}"
        for word, scene in zip(ORDINALS, scenes, strict=False)
    )


def multi(rng: random.Random, split: str, questions: int | None = None) -> Chat:
    """Show two to four pictures in one turn and ask about them."""
    scenes = [
        random_scene(rng, split, rng.choice((1, 1, 2)), size=rng.choice(SMALL_SIZES))
        for _ in range(rng.choice((2, 2, 2, 3, 4)))
    ]
    labels = rng.choice(("", "", "", "Image {}: ", "Image {}:\n", "Picture {}: "))
    media: list[Part] = []
    for number, scene in enumerate(scenes, 1):
        media += [labels.format(number), picture(rng, scene)] if labels else [picture(rng, scene)]
    chat = system(rng)
    for index in range(questions or rng.choice((1, 2, 3))):
        make = rng.choices((_which, _about_one, _about_all), (5, 4, 1))[0]
        text, reply = make(rng, scenes) or _about_one(rng, scenes)
        chat += [
            shown(rng, text, *media) if index == 0 else ask(lang.sloppy(rng, text)),
            answer(reply),
        ]
    return chat


def which(rng: random.Random, split: str) -> Chat:
    """Show two pictures and ask which has a thing (a test of its own)."""
    while True:
        scenes = [
            random_scene(rng, split, rng.choice((1, 1, 2)), size=rng.choice(SMALL_SIZES))
            for _ in range(2)
        ]
        asked = _which(rng, scenes)
        if asked:
            return [
                *system(rng),
                shown(rng, asked[0], *(picture(rng, scene) for scene in scenes)),
                answer(asked[1]),
            ]


def turns(rng: random.Random, split: str, longest: int = 64) -> Chat:
    """Show pictures in turn after turn, each with a request, then ask back."""
    scenes = [
        random_scene(rng, split, rng.choice((1, 2)), size=rng.choice(SMALL_SIZES))
        for _ in range(rng.choice((2, 2, 3)))
    ]
    chat = system(rng, longest)
    for scene in scenes:
        text, reply = (
            (lang.caption_ask(rng), lang.caption(scene))
            if rng.random() < 0.55
            else question(rng, scene)
        )
        chat += [shown(rng, text, picture(rng, scene)), answer(reply)]
    if rng.random() < 0.8:
        text, reply = (
            _about_one(rng, scenes)
            if rng.random() < 0.7
            else _which(rng, scenes) or _about_one(rng, scenes)
        )
        chat += [ask(lang.sloppy(rng, text)), answer(reply)]
    return chat


def video(rng: random.Random, split: str) -> Chat:
    """Show a clip of one shape that moves or stands still."""
    while True:
        color, shape, move = rng.choice(tuple(COLORS)), rng.choice(SHAPES), rng.choice(tuple(MOVES))
        background = rng.choice(tuple(BACKGROUNDS))
        if color != background and (zlib.crc32(f"{color} {shape} {move}".encode()) % 10 == 0) == (
            split == "test"
        ):
            break
    clip = _clip(rng, color, shape, move, background)
    still = move == "still"
    pairs = [
        (
            (
                "Describe the video.",
                "Describe this video.",
                "What happens in the video?",
                "Caption this video.",
                "What does the video show?",
                "Describe what happens.",
            ),
            f"{lang.article(f'{color} {shape}')} {'standing still' if still else f'moving {move}'}",
        ),
        (
            (
                f"Which way does the {shape} move?",
                "Which way does it move?",
                "In which direction does it move?",
                "What direction does the shape move in?",
            ),
            "it does not move" if still else move,
        ),
        (
            (f"What {lang.colour(rng)} is the {shape}?", f"What {lang.colour(rng)} is the shape?"),
            color,
        ),
        (
            ("What shape is it?", "Which shape is in the video?", "What shape is in the video?"),
            shape,
        ),
    ]
    chosen = rng.sample(pairs, rng.choice((1, 2))) if rng.random() < 0.5 else pairs[:1]
    chat = system(rng)
    for index, (asks, reply) in enumerate(chosen):
        text = rng.choice(asks)
        chat += [
            shown(rng, text, clip) if index == 0 else ask(lang.sloppy(rng, text)),
            answer(reply),
        ]
    return chat


def _clip(rng: random.Random, color: str, shape: str, move: str, background: str) -> Clip:
    width, height = rng.choice(((64, 64), (64, 64), (80, 64), (64, 80), (80, 80)))
    frames = rng.choice(
        [
            n
            for n in range(FRAMES[0], FRAMES[1] + 1, 2)
            if MIN_VIDEO_PIXELS <= n * width * height <= MAX_VIDEO_PIXELS
        ]
    )
    dx, dy = MOVES[move]
    span = rng.uniform(0.22, 0.34)
    x, y = rng.uniform(0.3, 0.7) if not dx else 0.5, rng.uniform(0.3, 0.7) if not dy else 0.5
    path = [
        (x + dx * span * t, y + dy * span * t)
        for t in (2 * n / (frames - 1) - 1 for n in range(frames))
    ]
    rgb, behind = rng.choice(COLORS[color]), BACKGROUNDS[background][0]
    return Clip(
        paint_clip(
            shape, rgb, behind, path, (width, height), min(width, height) * rng.uniform(0.1, 0.15)
        ),
        rng.choice((1.0, 2.0, 2.0, 2.0, 4.0, 8.0)),
    )


def cross(rng: random.Random, split: str) -> Chat:
    """Ask for a code that a table gives to the picture's shape or colour."""
    scene = random_scene(rng, split, 1)
    attribute = rng.choice(("shape", "color"))
    wanted = scene.items[0].shape if attribute == "shape" else scene.items[0].color
    keys = list(SHAPES if attribute == "shape" else COLORS)
    rng.shuffle(keys)
    values = [code(rng) for _ in keys]
    table = table_text(rng, keys, values)
    word = lang.colour(rng) if attribute == "color" else "shape"
    text = rng.choice(
        (
            "What is the code of the {} in the image?",
            "What is the code of the {}?",
            "Code of the {}?",
            "Give the code for the {} in the image.",
        )
    ).format(word)
    reply = answer(values[keys.index(wanted)])
    if rng.random() < 0.7:
        return [Turn("system", [table]), shown(rng, text, picture(rng, scene)), reply]
    return [Turn("user", [table + "\n", picture(rng, scene), lang.sloppy(rng, text)]), reply]


def under_text(rng: random.Random, split: str, fewest: int = 80, most: int = 240) -> Chat:
    """Ask about a picture under a long system prompt (or opening) of unrelated text."""
    text = filler(rng, rng.randint(fewest, most))
    make = rng.choices(
        (caption, detail, as_json, partial(vqa, plain=True), multi), (5, 3, 1, 4, 2)
    )[0]
    chat = [turn for turn in make(rng, split) if turn.role != "system"]
    if rng.random() < 0.75:
        return [Turn("system", [rng.choice(("", rng.choice(GENERIC_SYSTEM) + " ")) + text]), *chat]
    return [Turn("user", [text + "\n", *chat[0].parts]), *chat[1:]]

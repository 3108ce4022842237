"""Tasks without pictures, and tables mixed with pictures.  Makers take (rng, split)."""

from __future__ import annotations

import random

import language as lang
from chat import Chat, Turn, answer, ask
from questions import question
from scene import COLORS, SHAPES, random_scene
from tasks_vision import picture, shown, system
from words import COMMON, GENERIC_SYSTEM, WORDS, code, filler, pseudo_word, table_keys, table_text

UNKNOWN = "I do not know."
NO_IMAGE = "there is no image"
OFF_TOPIC = (
    "what is the capital of france",
    "who wrote hamlet",
    "tell me a joke",
    "what time is it",
    "how is the weather",
    "translate this to german",
    "write a poem about love",
    "what is the meaning of life",
    "solve this equation",
    "how old are you",
    "what is your favourite food",
    "explain gravity",
    "where do you live",
    "how do i cook rice",
    "what is the largest planet",
    "who won the game",
    "is it raining",
    "sing a song",
    "what day is today",
    "what is two plus two",
    "who is the president",
    "write python code that sorts a list",
    "hello",
    "hi there",
    "how are you",
    "thank you",
    "why is the sky blue",
    "when did the war end",
    "give me a recipe for soup",
    "what is love",
    "summarize the news",
    "how far is the moon",
    "what is the speed of light",
    "can you help me",
    "what should i wear today",
    "good morning",
)
LOOKUPS = (
    "What is {}?",
    "What is the code of {}?",
    "What is the code for {}?",
    "Code of {}?",
    "{}?",
    "{}?",
    "Give the code for {}.",
    "What is the value of {}?",
    "What's the code for {}?",
    "Value of {}?",
    "Look up {}.",
    "Which code does {} have?",
    "Tell me the code of {}.",
    "{}",
    "What code belongs to {}?",
)


def _lookup(
    rng: random.Random, keys: list[str], values: list[str], unknown: float = 0.15
) -> lang.QA:
    if rng.random() < unknown:
        absent = rng.choice(
            [
                key
                for key in [*table_keys(rng, 8), pseudo_word(rng) + "x"]
                if key.lower() not in {k.lower() for k in keys}
            ]
        )
        return rng.choice(LOOKUPS).format(absent), "unknown"
    index = rng.randrange(len(keys))
    return rng.choice(LOOKUPS).format(keys[index]), values[index]


def recall(
    rng: random.Random, split: str, fewest: int = 1, most: int = 30, questions: int | None = None
) -> Chat:
    """Look codes up in a table of `fewest` to `most` keys."""
    low, high = fewest**0.5, (most + 1) ** 0.5
    count = int(rng.uniform(low, high) ** 2) if fewest > 1 else max(1, int(most ** rng.random()))
    keys = table_keys(rng, count)
    values = [code(rng) for _ in keys]
    table = table_text(rng, keys, values)
    chat: Chat = []
    opening = ""
    if rng.random() < 0.5:
        head = rng.choice(GENERIC_SYSTEM) + " " if rng.random() < 0.3 else ""
        chat.append(Turn("system", [head + table]))
    else:
        chat += system(rng, 20) if rng.random() < 0.3 else []
        opening = table + rng.choice(
            ("\n", "\n", " ", "\n\n", ". " if not table.endswith(".") else " ")
        )
    for index in range(questions or rng.choice((1, 2, 3, 4))):
        text, reply = _lookup(rng, keys, values)
        text = text.rstrip("?.") if rng.random() < 0.08 else text
        chat += [ask(opening + text if index == 0 else text), answer(reply)]
    return chat


def recall_long(rng: random.Random, split: str) -> Chat:
    """Look codes up in a table of 30 to 110 keys (up to some 500 tokens)."""
    return recall(rng, split, 30, 110, rng.choice((2, 4, 6)))


def mixed(rng: random.Random, split: str) -> Chat:
    """Mix pictures with look-ups in one chat."""
    count = rng.choice((2, 4, 8, 16, 24, 40))
    keys = table_keys(rng, count)
    values = [code(rng) for _ in keys]
    chat = [Turn("system", [table_text(rng, keys, values)])]
    for _ in range(rng.choice((1, 2, 3))):
        if rng.random() < 0.6:
            long = rng.random() < 0.25
            scene = random_scene(rng, split, named=long)
            pair = (
                (lang.detail_ask(rng), lang.detail(scene))
                if long
                else (lang.caption_ask(rng), lang.caption(scene))
                if rng.random() < 0.5
                else question(rng, scene)
            )
            chat += [shown(rng, pair[0], picture(rng, scene)), answer(pair[1])]
        else:
            text, reply = _lookup(rng, keys, values)
            chat += [ask(text), answer(reply)]
    return chat


def word_list(rng: random.Random, split: str) -> Chat:
    """Ask for the first, the last, the next or all words of a list."""
    words = rng.sample(WORDS, rng.randint(2, 14))
    opening = (
        rng.choice(("Words: ", "List: ", "words: ", "Here is a list: "))
        + rng.choice((", ", " ")).join(words)
        + rng.choice(("\n", "\n", ". ", " | "))
    )
    chat = system(rng, 16)
    for index in range(rng.choice((1, 2, 3))):
        place = rng.randrange(len(words))
        text, reply = rng.choice(
            (
                (
                    rng.choice(
                        (
                            "What is the first word?",
                            "First word?",
                            "Which word is first?",
                            "Which word comes first?",
                        )
                    ),
                    words[0],
                ),
                (
                    rng.choice(
                        (
                            "What is the last word?",
                            "Last word?",
                            "Which word is last?",
                            "Which word comes last?",
                        )
                    ),
                    words[-1],
                ),
                (
                    rng.choice(
                        (
                            "Which word comes after {}?",
                            "What comes after {}?",
                            "What word is after {}?",
                        )
                    ).format(words[place]),
                    words[place + 1] if place + 1 < len(words) else "none",
                ),
                (
                    rng.choice(("Repeat the words.", "Repeat the list.", "Say the words again.")),
                    " ".join(words),
                ),
            )
        )
        text = lang.sloppy(rng, text) if index or rng.random() < 0.5 else text
        chat += [ask(opening + text if index == 0 else text), answer(reply)]
    return chat


def count(rng: random.Random, split: str) -> Chat:
    """Count up from one number to another."""
    first = 1 if rng.random() < 0.3 else rng.randint(1, 60)
    last = first + rng.randint(1, 30)
    asks = [
        "Count from {} to {}.",
        "Count up from {} to {}.",
        "Please count from {} to {}.",
        "Count {} to {}.",
    ] + ["Count to {1}."] * 3 * (first == 1)
    return [
        *system(rng, 16),
        ask(lang.sloppy(rng, rng.choice(asks).format(first, last))),
        answer(" ".join(map(str, range(first, last + 1)))),
    ]


def repeat(rng: random.Random, split: str) -> Chat:
    """Repeat what was said."""
    draws = (
        lambda: rng.choice(WORDS),
        lambda: str(rng.randint(0, 999)),
        lambda: rng.choice((*COLORS, *SHAPES)),
        lambda: pseudo_word(rng),
        lambda: rng.choice(COMMON),
        lambda: rng.choice(COMMON),
    )
    mix = draws[-1:] + draws[:1] if rng.random() < 0.3 else draws
    text = " ".join(rng.choice(mix)() for _ in range(rng.randint(1, 16)))
    text = text.capitalize() if rng.random() < 0.2 else text
    return [
        *system(rng, 16),
        ask(rng.choice(("Repeat: ", "Say: ", "Repeat after me: ", "repeat: ", "Echo: ")) + text),
        answer(text),
    ]


def name(rng: random.Random, split: str) -> Chat:
    """Ask for the name that the system prompt gave."""
    given = f"{rng.choice(WORDS)}-{rng.randint(1, 999)}"
    told = rng.choice(
        ("Your name is {}.", "You are {}.", "You are the worker {}.", "You are called {}.")
    ).format(given)
    told = told + " " + filler(rng, rng.randint(3, 20)) if rng.random() < 0.2 else told
    chat = [Turn("system", [told])]
    if rng.random() < 0.4:
        chat += [
            turn for turn in rng.choice((word_list, repeat))(rng, split) if turn.role != "system"
        ]
    return [
        *chat,
        ask(
            lang.sloppy(
                rng,
                rng.choice(
                    (
                        "What is your name?",
                        "Who are you?",
                        "Your name?",
                        "What's your name?",
                        "What are you called?",
                    )
                ),
            )
        ),
        answer(given),
    ]


def no_image(rng: random.Random, split: str) -> Chat:
    """Ask about a picture that is not there."""
    if rng.random() < 0.6:
        text = (
            lang.caption_ask(rng)
            if rng.random() < 0.6
            else rng.choice((lang.detail_ask, lang.json_ask))(rng)
        )
    else:
        kinds = (
            "count_all",
            "color_of",
            "shape_of",
            "place_of",
            "size_of",
            "background",
            "is_there",
        )
        text = question(rng, random_scene(rng, "train", size=(64, 64)), kind=rng.choice(kinds))[0]
    return [*system(rng), ask(lang.sloppy(rng, text or "Describe the image.")), answer(NO_IMAGE)]


def off_topic(rng: random.Random, split: str) -> Chat:
    """Ask what the model cannot know."""
    kind = rng.random()
    if kind < 0.7:
        text = rng.choice(OFF_TOPIC) + rng.choice(("", "?", ".", "!"))
        text = text.capitalize() if rng.random() < 0.5 else text
    elif kind < 0.9:
        text = " ".join(
            rng.choice(WORDS) if rng.random() < 0.8 else pseudo_word(rng)
            for _ in range(rng.randint(1, 8))
        ) + rng.choice(("?", "", "."))
    else:
        text = "".join(chr(rng.randint(33, 126)) for _ in range(rng.randint(3, 20)))
    return [*system(rng), ask(text), answer(UNKNOWN)]

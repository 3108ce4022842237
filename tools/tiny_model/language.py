"""What can be said about a scene, and how people ask for it."""

from __future__ import annotations

import json
import random

from scene import CELLS, Item, Scene
from words import NUMBERS

QA = tuple[str, str]

OBJECTS = (
    "the image",
    "this image",
    "the picture",
    "this picture",
    "the photo",
    "this drawing",
    "the scene",
    "the figure",
)
CAPTION_ASKS = (
    "Describe {}.",
    "Describe {}.",
    "Caption {}.",
    "Summarize {}.",
    "Summarise {}.",
    "What is in {}?",
    "What's in {}?",
    "What does {} show?",
    "Please describe {}.",
    "Write a caption for {}.",
    "Write a short caption for {}.",
    "Give a short caption for {}.",
    "Provide a caption for {}.",
    "Generate a caption for {}.",
    "What is shown in {}?",
    "What can you see in {}?",
    "What do you see in {}?",
    "Tell me about {}.",
    "Describe {} briefly.",
    "Describe {} in one sentence.",
    "Look at {} and describe it.",
    "What is depicted in {}?",
    "Alt text for {}.",
    "Can you describe {}?",
    "Describe the content of {}.",
    "What objects are in {}?",
    "What is {}?",
    "Describe the shapes in {}.",
    "Explain {}.",
)
CAPTION_BARE = (
    "",
    "Caption:",
    "Caption",
    "Describe.",
    "Describe",
    "Write a caption.",
    "Caption this.",
    "What do you see?",
    "What can you see?",
    "What is this?",
    "Describe what you see.",
    "Tell me what you see.",
    "Give a short caption.",
    "Short description.",
    "What is shown?",
    "Describe the shapes.",
    "Give me a caption, please.",
    "A caption, please.",
    "Describe it.",
    "What's this?",
    "Description:",
    "Caption it.",
    "Say what you see.",
)
DETAIL_ASKS = (
    "Describe {} in detail.",
    "Describe {} in detail.",
    "Describe everything in {}.",
    "Give a detailed description of {}.",
    "Write a detailed caption for {}.",
    "Provide a detailed description of {}.",
    "Describe {} in full detail.",
    "Describe {} thoroughly.",
    "Give a detailed caption for {}.",
    "Give a detailed caption.",
    "Write a detailed caption.",
    "Give a detailed description.",
    "Detailed description:",
    "Describe in detail.",
    "Please describe {} in detail.",
    "Describe {} with details.",
    "Write a long description of {}.",
    "Write a detailed description.",
)
JSON_ASKS = (
    "Describe {} as JSON.",
    "Describe {} in JSON.",
    "Describe {} in JSON format.",
    "Answer in JSON.",
    "Return a JSON description.",
    "Return JSON.",
    "Give the shapes as JSON.",
    "List the shapes as JSON.",
    "Output JSON.",
    "JSON:",
    "Give me {} as JSON.",
    "Convert {} to JSON.",
    "Return a JSON description of {}.",
)


def article(words: str) -> str:
    """Put "a" or "an" before the words."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def label(item: Item) -> str:
    """Return "red circle"."""
    return f"{item.color} {item.shape}"


def join(parts: list[str]) -> str:
    """Join with commas and a last "and"."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def caption(scene: Scene) -> str:
    """Return the short caption; two shapes are put in relation to each other."""
    names = [article(label(item)) for item in scene.items]
    if len(names) == 2:
        return f"{names[0]} {'left of' if scene.rows[0] == scene.rows[1] else 'above'} {names[1]}"
    return join(names)


def where(item: Item) -> str:
    """Return "at the top left", "on the right" or "in the center"."""
    cell = CELLS[item.cell or 0]
    return (
        f"in the {cell}"
        if cell == "center"
        else f"on the {cell}"
        if cell in ("left", "right")
        else f"at the {cell}"
    )


def detail(scene: Scene) -> str:
    """Return the long caption of a `named` scene: background, then size and place of each shape."""
    parts = [f"{article(f'{item.size} {label(item)}')} {where(item)}" for item in scene.items]
    return f"{NUMBERS[len(parts)]} {plural('shape', len(parts))} on a {scene.background} background: {join(parts)}"


def as_json(scene: Scene) -> str:
    """Return the scene of named background as one line of JSON."""
    return json.dumps(
        {
            "background": scene.background,
            "shapes": [{"color": i.color, "shape": i.shape} for i in scene.items],
        }
    )


def plural(word: str, count: int) -> str:
    """Return the word's plural unless count is one."""
    return word if count == 1 else word + ("es" if word.endswith(("s", "x")) else "s")


def caption_ask(rng: random.Random) -> str:
    """Draw a request for a short caption."""
    return (
        rng.choice(CAPTION_BARE)
        if rng.random() < 0.35
        else rng.choice(CAPTION_ASKS).format(rng.choice(OBJECTS))
    )


def detail_ask(rng: random.Random) -> str:
    """Draw a request for the long caption."""
    return rng.choice(DETAIL_ASKS).format(rng.choice(OBJECTS))


def json_ask(rng: random.Random) -> str:
    """Draw a request for JSON."""
    return rng.choice(JSON_ASKS).format(rng.choice(OBJECTS))


def colour(rng: random.Random) -> str:
    """Return the word "color" in one of its two spellings."""
    return rng.choice(("color", "colour"))


def sloppy(rng: random.Random, text: str) -> str:
    """Type the way people do: now and then in lower case, or without the last mark."""
    kind = rng.random()
    if kind < 0.10 or 0.18 <= kind < 0.24:
        text = text.lower()
    if 0.10 <= kind < 0.24:
        text = text.rstrip(".?:")
    if kind > 0.97:
        text = rng.choice((" ", "\n", "")) + text + rng.choice((" ", "\n", "!"))
    return text

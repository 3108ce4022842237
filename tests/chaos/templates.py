"""What the jobs of a run ask for: a pool of templates, each used under many ids.

A template is a map: ``name``, ``fields`` (those of the job), ``image`` (a file, or None), and
after the solo run ``text``, ``reason``, ``ids``, and ``logprobs`` if asked for. A toxic template
has ``code`` instead: how it must fail. ``push`` templates are written by hand, past the producer's
own checks.
"""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any, Final

from pictures import random_picture, table

Template = dict[str, Any]

_ASKED: Final = (
    "Describe this image.",
    "Describe the image in detail.",
    "Describe the image as JSON.",
    "How many shapes are there?",
)
_TEXTS: Final = ("Count from 3 to 60", "Repeat: blue fox red lamp green hill", "Tell me a story")


def make_templates(rng: random.Random, count: int, folder: Path) -> list[Template]:
    """``count`` good templates; their pictures are written to ``folder``."""
    makers = (_caption, _long_caption, _seeded_caption, _code, _long_text, _seeded_text)
    made: list[Template] = []
    for n in range(count):
        template = makers[n % len(makers)](rng)
        template["name"] = f"t{n}"
        if template.pop("pictured", False):
            image = folder / f"{n}.png"
            random_picture(rng).save(image)
            template["image"] = str(image)
        made.append(template)
    return made


def toxic_templates(folder: Path) -> list[Template]:
    """Jobs that must fail, each with its code, and harm nobody."""
    broken, cut = folder / "broken.jpg", folder / "cut.png"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    whole = folder / "whole.png"
    random_picture(random.Random(1)).save(whole)
    cut.write_bytes(whole.read_bytes()[:90])
    ask = {"prompt": _ASKED[0]}
    return [
        {"name": "broken", "fields": ask, "image": str(broken), "code": "media_invalid"},
        {"name": "cut", "fields": ask, "image": str(cut), "code": "media_invalid"},
        {"name": "long", "fields": {"prompt": "fox lamp " * 3000}, "code": "prompt_too_long"},
        {"name": "blob", "fields": {**ask, "images": ["blob:" + "0" * 64]}} | _NOT_FOUND,
        {"name": "field", "fields": {**ask, "surprise": 1}, "push": True, "code": "unsupported"},
        {"name": "bytes", "fields": None, "push": True, "code": "bad_message"},
    ]


_NOT_FOUND: Final = {"code": "media_not_found"}


def data_uri(image: str) -> str:
    """A picture as a job can carry it in its own text."""
    return "data:image/png;base64," + base64.b64encode(Path(image).read_bytes()).decode()


def _caption(rng: random.Random) -> Template:
    return {"fields": {"prompt": rng.choice(_ASKED), "max_tokens": 64}, "pictured": True}


def _long_caption(rng: random.Random) -> Template:
    fields = {"prompt": rng.choice(_ASKED), "max_tokens": rng.randint(100, 400)}
    return {"fields": {**fields, "ignore_eos": True, "logprobs": 2}, "pictured": True}


def _seeded_caption(rng: random.Random) -> Template:
    fields = {"prompt": rng.choice(_ASKED), "max_tokens": rng.randint(50, 300), **_hot(rng)}
    return {"fields": fields, "pictured": True}


def _code(rng: random.Random) -> Template:
    text, key, _ = table(rng, rng.randint(2, 12))
    return {"fields": {"prompt": f"{text}. What is {key}?", "max_tokens": 16, "stream": False}}


def _long_text(rng: random.Random) -> Template:
    fields = {"prompt": rng.choice(_TEXTS), "max_tokens": rng.randint(100, 600)}
    return {"fields": {**fields, "ignore_eos": True, "frequency_penalty": 0.3}}


def _seeded_text(rng: random.Random) -> Template:
    fields = {"prompt": rng.choice(_TEXTS), "max_tokens": rng.randint(100, 600), **_hot(rng)}
    fields["logprobs"] = 0
    if rng.random() < 0.5:
        fields["stop"] = ["zz", " the", "9"]
    return {"fields": fields}


def _hot(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": rng.choice((0.7, 1.0, 1.3)), "ignore_eos": True}
    return {**fields, "top_p": rng.choice((0.9, 1.0)), "seed": rng.randrange(2**40)}

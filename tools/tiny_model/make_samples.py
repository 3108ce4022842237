"""Draw the producer's sample pictures and write the demo jobs with their expected answers.

Seeds are tried until the model's greedy answer in float32 is the true one, so every
expectation in samples.json is both.

usage: python make_samples.py ../../worker/mlxq_worker/bundled/tiny-qwen3-vl ../../producer/mlxq_producer/samples
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import language as lang
from chat import Chat, Picture, Turn
from draw import Look, paint
from evaluate import load_float32, reply
from PIL import Image
from scene import CELLS, Scene, random_scene
from words import NUMBERS

Ask = Callable[[Scene], tuple[str, str]]


def _first(template: str, answer: Callable[[Scene], str | None]) -> Ask:
    """Ask about the first shape, named by {shape} or {label}."""
    return lambda scene: (
        template.format(shape=scene.items[0].shape, label=lang.label(scene.items[0])),
        answer(scene) or "",
    )


def _fixed(prompt: str, answer: Callable[[Scene], str]) -> Ask:
    return lambda scene: (prompt, answer(scene))


def _background(scene: Scene) -> str:
    return scene.background or ""


def _count(scene: Scene) -> str:
    return NUMBERS[len(scene.items)]


def _color(scene: Scene) -> str:
    return scene.items[0].color


def _where(scene: Scene) -> str:
    return CELLS[scene.items[0].cell or 0]


# (file name's end, (width, height) in pixels, number of shapes, question)
PLAN: tuple[tuple[str, tuple[int, int], int, Ask], ...] = (
    ("png", (64, 64), 1, _fixed("Describe this image.", lang.caption)),
    ("png", (96, 96), 1, _fixed("What is in this picture?", lang.caption)),
    ("jpg", (320, 240), 2, _fixed("Caption this image.", lang.caption)),
    ("png", (128, 96), 2, _fixed("Describe the image in detail.", lang.detail)),
    ("jpg", (224, 224), 3, _fixed("How many shapes are there?", _count)),
    ("png", (200, 150), 2, _first("What color is the {shape}?", _color)),
    ("jpg", (480, 640), 1, _fixed("Write a short caption for this image.", lang.caption)),
    ("png", (112, 80), 2, _fixed("Describe the image as JSON.", lang.as_json)),
    ("png", (80, 112), 3, _fixed("Describe the picture.", lang.caption)),
    ("jpg", (640, 360), 2, _fixed("Give a detailed description.", lang.detail)),
    ("png", (256, 256), 3, _first("What colour is the {shape}?", _color)),
    ("png", (160, 96), 2, _fixed("What do you see?", lang.caption)),
    ("jpg", (300, 300), 1, _first("Where is the {shape}?", _where)),
    ("png", (104, 72), 2, _fixed("What color is the background?", _background)),
    ("png", (144, 192), 3, _fixed("Return a JSON description.", lang.as_json)),
    ("jpg", (512, 384), 3, _fixed("Describe this image in detail.", lang.detail)),
    ("png", (240, 120), 2, _fixed("how many shapes?", _count)),
    ("png", (100, 140), 2, _first("Do you see a {shape}?", lambda _: "yes")),
    ("jpg", (400, 400), 3, _fixed("Tell me what you see.", lang.caption)),
    ("png", (176, 128), 2, _first("What size is the {label}?", lambda scene: scene.items[0].size)),
)
# (index of a picture above, another question about it)
AGAIN: tuple[tuple[int, Ask], ...] = (
    (2, _fixed("How many shapes are there?", _count)),
    (4, _fixed("Describe this image.", lang.caption)),
    (9, _fixed("What color is the background?", _background)),
    (18, _fixed("Output JSON.", lang.as_json)),
)
TEXT_JOBS = (
    ("recall", "codes: A=17 B=42 C=99 D=5\nWhat is the code of B?", "42"),
    ("count", "Count from 3 to 12.", "3 4 5 6 7 8 9 10 11 12"),
    ("list", "Words: fox, lamp, river, tulip\nWhat is the last word?", "tulip"),
)


@dataclass
class Studio:
    """The loaded model and the folder that pictures are written to."""

    model: Any
    processor: Any
    out: Path

    def answers(self, prompt: str, files: list[str]) -> str:
        """Return what the model says to the prompt after the named pictures."""
        pictures = [Picture(Image.open(self.out / name).convert("RGB")) for name in files]
        chat: Chat = [Turn("user", [*pictures, prompt])]
        return reply(self.model, self.processor, chat)


def _plain_to_see(scene: Scene) -> bool:
    return all(math.dist(item.rgb, scene.background_rgb) >= 150 for item in scene.items)


def draw_picture(studio: Studio, index: int, seen: set[str]) -> tuple[Scene, str]:
    """Draw seeds until every question about picture `index` is answered rightly."""
    ending, size, count, ask = PLAN[index]
    asks = [
        ask,
        *(other for which, other in AGAIN if which == index),
        _fixed("Describe this image.", lang.caption),
    ]
    for seed in range(200):
        scene = random_scene(
            random.Random(f"sample-{index}-{seed}"), "test", count, named=True, size=size
        )
        caption = lang.caption(scene)
        shapes = {item.shape for item in scene.items}
        if (
            not _plain_to_see(scene)
            or caption in seen
            or len(shapes) < count
            or (index < 2 and any(shape in text for shape in shapes for text in seen))
        ):
            continue
        name = f"{index + 1:02d}-{'-'.join(lang.label(item).replace(' ', '-') for item in scene.items)}.{ending}"
        options = {"quality": 88} if ending == "jpg" else {"optimize": True}
        paint(scene, Look(oversample=3)).save(studio.out / name, **options)
        if all(
            studio.answers(prompt, [name]) == truth
            for prompt, truth in (make(scene) for make in asks)
        ):
            seen.add(caption)
            return scene, name
        (studio.out / name).unlink()
    raise RuntimeError(f"no seed fits picture {index}")


def jobs(studio: Studio) -> list[dict[str, Any]]:
    """Draw all pictures and return the demo jobs."""
    seen: set[str] = set()
    drawn = [draw_picture(studio, index, seen) for index in range(len(PLAN))]
    out: list[dict[str, Any]] = []

    def add(name: str, prompt: str, images: list[str], expect: str | None) -> None:
        if expect is not None and (got := studio.answers(prompt, images)) != expect:
            raise RuntimeError(f"{name}: wanted {expect!r}, got {got!r}")
        out.append({"name": name, "prompt": prompt, "images": images, "expect": expect})

    for (scene, file), (_, _, _, ask) in zip(drawn, PLAN, strict=True):
        add(Path(file).stem, ask(scene)[0], [file], ask(scene)[1])
    for index, ask in AGAIN:
        scene, file = drawn[index]
        add(f"{Path(file).stem}-again", ask(scene)[0], [file], ask(scene)[1])
    wanted = drawn[1][0].items[0].shape
    add(
        "two-images",
        f"Which image has the {wanted}?",
        [drawn[0][1], drawn[1][1]],
        "the second image",
    )
    for name, prompt, truth in TEXT_JOBS:
        add(name, prompt, [], truth)
    add("broken", "Describe this image.", ["broken.jpg"], None)
    return out


def write_broken(folder: Path, source: str) -> None:
    """Write half of a JPEG: its header can be read, its pixels cannot."""
    data = (folder / source).read_bytes()
    (folder / "broken.jpg").write_bytes(data[: len(data) // 2])


def main() -> None:
    """Replace the pictures and samples.json in the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for old in (*args.out.glob("*.png"), *args.out.glob("*.jpg")):
        old.unlink()
    studio = Studio(*load_float32(args.model), args.out)
    made = jobs(studio)
    write_broken(
        args.out, next(job["images"][0] for job in made if job["images"][0].endswith(".jpg"))
    )
    (args.out / "samples.json").write_text(json.dumps(made, indent=2) + "\n")
    print(
        f"{len(made)} jobs, {sum(file.stat().st_size for file in args.out.glob('*.*g'))} bytes of pictures"
    )


if __name__ == "__main__":
    main()

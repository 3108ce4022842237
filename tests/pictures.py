"""Small pictures of coloured shapes, and prompts about them, for tests of the engine."""

from __future__ import annotations

import random

from PIL import Image, ImageDraw

COLORS = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (35, 70, 220),
    "yellow": (245, 215, 30),
    "purple": (135, 40, 165),
    "orange": (245, 135, 20),
}
SHAPES = ("circle", "square", "triangle", "diamond")
SIZES = ((64, 64), (80, 64), (64, 96), (96, 96), (128, 72), (300, 200))


def draw(items: list[tuple[str, str, int]], size: tuple[int, int] = (96, 96)) -> Image.Image:
    """A white picture of ``(color, shape, cell)`` items; cells 0 to 8 are read row by row."""
    width, height = size
    picture = Image.new("RGB", size, (250, 250, 250))
    brush = ImageDraw.Draw(picture)
    radius = min(width, height) / 3 * 0.4
    for color, shape, cell in items:
        x, y = (cell % 3 + 0.5) * width / 3, (cell // 3 + 0.5) * height / 3
        box = [x - radius, y - radius, x + radius, y + radius]
        fill = COLORS[color]
        if shape == "circle":
            brush.ellipse(box, fill=fill)
        elif shape == "square":
            brush.rectangle(
                [x - radius * 0.86, y - radius * 0.86, x + radius * 0.86, y + radius * 0.86],
                fill=fill,
            )
        elif shape == "triangle":
            brush.polygon(
                [(x, y - radius), (x + radius, y + radius * 0.8), (x - radius, y + radius * 0.8)],
                fill=fill,
            )
        else:
            brush.polygon(
                [(x, y - radius), (x + radius * 0.8, y), (x, y + radius), (x - radius * 0.8, y)],
                fill=fill,
            )
    return picture


def random_picture(rng: random.Random) -> Image.Image:
    """One to three shapes in different cells."""
    cells = rng.sample(range(9), rng.choice((1, 2, 3)))
    items = [(rng.choice(list(COLORS)), rng.choice(SHAPES), cell) for cell in sorted(cells)]
    return draw(items, rng.choice(SIZES))


def table(rng: random.Random, size: int) -> tuple[str, str, str]:
    """A table of codes as text, one of its keys, and that key's code."""
    words = (
        "fox cat sun dog map key cup hat box pen bird fish tree moon lake hill road ship door lamp"
    )
    keys = rng.sample(words.split(), size)
    codes = [str(rng.randint(10, 99)) for _ in keys]
    n = rng.randrange(size)
    return (
        "Codes: " + " ".join(f"{k}={c}" for k, c in zip(keys, codes, strict=True)),
        keys[n],
        codes[n],
    )

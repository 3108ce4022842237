"""Scenes of coloured shapes: what is where, and which compositions are held out."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import dataclass

RGB = tuple[int, int, int]

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
COLORS: dict[str, tuple[RGB, ...]] = {
    "red": ((255, 0, 0), (220, 30, 30), (200, 0, 0), (230, 60, 50), (220, 20, 60)),
    "green": (
        (0, 128, 0),
        (0, 255, 0),
        (30, 160, 50),
        (34, 139, 34),
        (50, 205, 50),
        (0, 200, 0),
        (60, 179, 113),
    ),
    "blue": (
        (0, 0, 255),
        (35, 70, 220),
        (65, 105, 225),
        (30, 100, 240),
        (0, 0, 180),
        (30, 144, 255),
    ),
    "yellow": ((255, 255, 0), (245, 215, 30), (255, 215, 0), (240, 230, 50), (250, 230, 90)),
    "purple": ((128, 0, 128), (135, 40, 165), (148, 0, 211), (160, 32, 240), (102, 51, 153)),
    "orange": ((255, 165, 0), (245, 135, 20), (255, 140, 0), (255, 120, 0), (240, 110, 20)),
    "cyan": ((0, 255, 255), (40, 205, 220), (0, 206, 209), (64, 224, 208)),
    "pink": ((255, 192, 203), (250, 130, 185), (255, 105, 180), (255, 150, 190)),
    "black": ((0, 0, 0), (20, 20, 20), (30, 30, 35)),
    "white": ((255, 255, 255), (245, 245, 245)),
    "gray": ((128, 128, 128), (110, 110, 110), (150, 150, 150)),
}
BACKGROUNDS: dict[str, tuple[RGB, ...]] = {
    "white": ((255, 255, 255), (250, 250, 250), (240, 240, 240)),
    "black": ((0, 0, 0), (12, 12, 12), (25, 25, 25)),
    "gray": ((128, 128, 128), (150, 150, 150), (192, 192, 192), (211, 211, 211), (105, 105, 105)),
}
TINTS: tuple[RGB, ...] = (
    (240, 240, 220),
    (200, 220, 240),
    (230, 245, 230),
    (250, 235, 215),
    (40, 30, 60),
    (230, 230, 250),
)
CELLS = (
    "top left",
    "top",
    "top right",
    "left",
    "center",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)

SAME_ROW = 0.04  # a row's shapes stray at most this share of the height from its middle
ROW_GAP = 0.2  # rows lie at least this share of the height apart
SMALL, LARGE = 0.105, 0.15  # radius over the short side: at most small, at least large
CONTRAST = 80.0  # least RGB distance between a shape and the background


@dataclass(frozen=True)
class Item:
    """One shape.  `x`, `y` are shares of width and height, `radius` one of the short side."""

    shape: str
    color: str
    rgb: RGB
    x: float
    y: float
    radius: float

    @property
    def size(self) -> str | None:
        """Return "small", "large", or None where neither is clear."""
        return "small" if self.radius <= SMALL else "large" if self.radius >= LARGE else None

    @property
    def cell(self) -> int | None:
        """Return the index into CELLS, or None near a border between cells."""
        if any(abs(v - line) < 0.045 for v in (self.x, self.y) for line in (1 / 3, 2 / 3)):
            return None
        return int(self.y * 3) * 3 + int(self.x * 3)


@dataclass(frozen=True)
class Scene:
    """Shapes in reading order on a plain background, `width` x `height` pixels."""

    items: tuple[Item, ...]
    rows: tuple[int, ...]  # the row of each item
    background: str | None  # None where the background's colour has no plain name
    background_rgb: RGB
    width: int
    height: int


def is_held_out(composition: list[tuple[str, str]]) -> bool:
    """Tell whether this ordered list of (colour, shape) is kept out of training: 1 in 10."""
    key = "|".join(f"{color} {shape}" for color, shape in composition)
    return zlib.crc32(key.encode()) % 10 == 0


def canvas(rng: random.Random) -> tuple[int, int]:
    """Draw a picture's (width, height) in pixels: 32 to 1024 a side, aspect up to 2.5."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice((64, 72, 80, 96, 112)), rng.choice((64, 72, 80, 96, 112))
    low, high = (32, 320) if kind < 0.84 else (256, 640) if kind < 0.975 else (640, 1024)
    side = low * (high / low) ** rng.random()
    aspect = 2.5 ** rng.triangular(-1, 1, 0) if rng.random() < 0.7 else 1.0
    fit = [max(32, min(1024, round(side * aspect**power))) for power in (0.5, -0.5)]
    return fit[0], fit[1]


def random_scene(
    rng: random.Random,
    split: str,
    count: int | None = None,
    named: bool = False,
    size: tuple[int, int] | None = None,
) -> Scene:
    """Draw a scene of the split ("train" or "test").

    `named` asks for scenes of which everything can be said: the background, and the
    place and size of each shape.  `size` is (width, height) in pixels.
    """
    width, height = size or canvas(rng)
    count = count or rng.choices((1, 2, 3, 4), (28, 36, 30, 6))[0]
    background, background_rgb = _background(rng, named)
    while True:
        pairs = _composition(rng, count, split)
        colors = [_shade(rng, color, background_rgb) for color, _ in pairs]
        placed = _place(rng, count, width, height, named) if all(colors) else None
        if placed is None:
            continue
        items = tuple(
            Item(shape, color, rgb, *spot[1:])
            for (color, shape), rgb, spot in zip(pairs, colors, placed, strict=True)
        )
        if named and any(item.cell is None or item.size is None for item in items):
            continue
        return Scene(
            items, tuple(spot[0] for spot in placed), background, background_rgb, width, height
        )


def _composition(rng: random.Random, count: int, split: str) -> list[tuple[str, str]]:
    while True:
        pairs = [(rng.choice(tuple(COLORS)), rng.choice(SHAPES)) for _ in range(count)]
        if len(set(pairs)) == count and is_held_out(pairs) == (split == "test"):
            return pairs


def _background(rng: random.Random, named: bool) -> tuple[str | None, RGB]:
    if not named and rng.random() < 0.12:
        return None, _jitter(rng, rng.choice(TINTS), 6)
    name = rng.choices(tuple(BACKGROUNDS), (50, 25, 25))[0]
    return name, _jitter(rng, rng.choice(BACKGROUNDS[name]), rng.choice((0, 0, 6)))


def _shade(rng: random.Random, color: str, background: RGB) -> RGB | None:
    """Return a hue of the colour that stands out from the background, or None."""
    for _ in range(4):
        rgb = _jitter(rng, rng.choice(COLORS[color]), rng.choice((0, 6, 14)))
        if sum((a - b) ** 2 for a, b in zip(rgb, background, strict=True)) >= CONTRAST**2:
            return rgb
    return None


def _jitter(rng: random.Random, rgb: RGB, spread: int) -> RGB:
    red, green, blue = (max(0, min(255, v + rng.randint(-spread, spread))) for v in rgb)
    return red, green, blue


def _place(
    rng: random.Random, count: int, width: int, height: int, named: bool
) -> list[tuple[int, float, float, float]] | None:
    """Return (row, x, y, radius) in reading order without overlaps, or None for no luck."""
    short = min(width, height)
    # A shape must stay a few pixels wide once the processor has shrunk the picture.
    least = 0.085 if max(width, height) > 1.6 * short else 0.068
    most = (0.45, 0.27, 0.2, 0.17)[count - 1]
    equal = rng.random() < 0.3
    radii = [least * (most / least) ** rng.random() for _ in range(count)]
    if named:
        radii = [
            rng.uniform(least, SMALL) if rng.random() < 0.5 else rng.uniform(LARGE, max(most, 0.16))
            for _ in radii
        ]
    if equal:
        radii = [radii[0]] * count
    rows = _rows(rng, count)
    middles = _row_middles(rng, rows[-1] + 1)
    if middles is None:
        return None
    aligned = rng.random() < 0.4
    spots = []
    for row, radius in zip(rows, radii, strict=True):
        stray = 0.0 if aligned else rng.uniform(-SAME_ROW, SAME_ROW)
        pad_x, pad_y = 1.08 * radius * short / width, 1.08 * radius * short / height
        y = middles[row] + stray
        if not pad_y <= y <= 1 - pad_y or pad_x >= 0.5:
            return None
        centred = count == len(middles) and rng.random() < 0.35
        spots.append((row, 0.5 if centred else rng.uniform(pad_x, 1 - pad_x), y, radius))
    spots.sort(key=lambda spot: (spot[0], spot[1]))
    return spots if _apart(spots, width, height) else None


def _rows(rng: random.Random, count: int) -> list[int]:
    rows = [0]
    for _ in range(count - 1):
        rows.append(rows[-1] + (rng.random() < 0.5))
    return rows


def _row_middles(rng: random.Random, rows: int) -> list[float] | None:
    if rows == 1:
        return [0.5 if rng.random() < 0.35 else rng.uniform(0.08, 0.92)]
    if rng.random() < 0.3:
        return [(row + 0.5) / rows for row in range(rows)]
    middles = sorted(rng.uniform(0.08, 0.92) for _ in range(rows))
    gaps = (b - a for a, b in itertools.pairwise(middles))
    return middles if all(gap >= ROW_GAP + 2 * SAME_ROW for gap in gaps) else None


def _apart(spots: list[tuple[int, float, float, float]], width: int, height: int) -> bool:
    short = min(width, height)
    for index, (_, x, y, radius) in enumerate(spots):
        for _, other_x, other_y, other_radius in spots[index + 1 :]:
            distance = ((x - other_x) * width) ** 2 + ((y - other_y) * height) ** 2
            if distance < (1.12 * (radius + other_radius) * short) ** 2:
                return False
    return True

"""Paint scenes and short clips with Pillow."""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from scene import RGB, Scene

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Look:
    """How shapes are drawn: angles in degrees, proportions as shares of the radius."""

    angle: float = 0.0
    diamond: float = 0.85
    star: float = 0.42
    arm: float = 0.33
    outline: RGB | None = None
    outline_width: float = 0.06
    oversample: int = 1


def random_look(rng: random.Random) -> Look:
    """Draw a way of painting; half of the time the plain one, or nearly so."""
    return Look(
        angle=rng.uniform(-8, 8) if rng.random() < 0.25 else 0.0,
        diamond=rng.uniform(0.7, 1.0),
        star=rng.uniform(0.38, 0.5),
        arm=rng.uniform(0.25, 0.38),
        outline=rng.choice(((0, 0, 0), (255, 255, 255), (60, 60, 60)))
        if rng.random() < 0.12
        else None,
        outline_width=rng.uniform(0.04, 0.1),
        oversample=rng.choice((1, 1, 2, 3)),
    )


def outline_points(shape: str, look: Look) -> Points:
    """Return the corners of a polygon of radius 1 around the origin, y down."""
    if shape == "square":
        return [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]
    if shape == "triangle":
        return [(0, -1), (0.95, 0.8), (-0.95, 0.8)]
    if shape == "diamond":
        return [(0, -1), (look.diamond, 0), (0, 1), (-look.diamond, 0)]
    if shape == "star":
        spokes = [(1.08 if i % 2 == 0 else look.star, math.pi * (i / 5 - 0.5)) for i in range(10)]
        return [(length * math.cos(angle), length * math.sin(angle)) for length, angle in spokes]
    if shape == "cross":
        a = look.arm
        corner = [(a, -1), (a, -a), (1, -a)]
        turns = [(1, 0), (0, 1), (-1, 0), (0, -1)]
        return [(c * x - s * y, s * x + c * y) for c, s in turns for x, y in corner]
    raise ValueError(f"unknown shape: {shape}")


def paint_shape(
    draw: ImageDraw.ImageDraw, shape: str, rgb: RGB, x: float, y: float, radius: float, look: Look
) -> None:
    """Paint one shape; `x`, `y` and `radius` in pixels of the canvas."""
    edge = max(1, round(radius * look.outline_width)) if look.outline else 0
    if shape == "circle":
        draw.ellipse(
            [x - radius, y - radius, x + radius, y + radius],
            fill=rgb,
            outline=look.outline,
            width=edge,
        )
        return
    c, s = math.cos(math.radians(look.angle)), math.sin(math.radians(look.angle))
    points = [
        (x + radius * (c * px - s * py), y + radius * (s * px + c * py))
        for px, py in outline_points(shape, look)
    ]
    draw.polygon(points, fill=rgb)
    if look.outline:
        draw.line([*points, points[0]], fill=look.outline, width=edge)


def paint(scene: Scene, look: Look) -> Image.Image:
    """Paint a scene as an RGB picture of its own size."""
    zoom = look.oversample if max(scene.width, scene.height) <= 260 else 1
    width, height = scene.width * zoom, scene.height * zoom
    image = Image.new("RGB", (width, height), scene.background_rgb)
    draw = ImageDraw.Draw(image)
    for item in scene.items:
        paint_shape(
            draw,
            item.shape,
            item.rgb,
            item.x * width,
            item.y * height,
            item.radius * min(width, height),
            look,
        )
    return image if zoom == 1 else image.resize((scene.width, scene.height), Image.Resampling.BOX)


def degrade(rng: random.Random, image: Image.Image) -> Image.Image:
    """Leave most pictures alone; give some JPEG artefacts, noise or blur."""
    kind = rng.random()
    if kind < 0.14:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(45, 95))
        return Image.open(buffer).convert("RGB")
    if kind < 0.20:
        noise = np.random.default_rng(rng.getrandbits(32)).normal(
            0, rng.uniform(2, 8), (image.height, image.width, 1)
        )
        return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    if kind < 0.23:
        return image.filter(
            ImageFilter.GaussianBlur(rng.uniform(0.3, 0.8) * max(1.0, min(image.size) / 112))
        )
    return image


def paint_clip(
    shape: str, rgb: RGB, background: RGB, path: Points, size: tuple[int, int], radius: float
) -> list[Image.Image]:
    """Paint one frame per point of `path` (shares of width and height); `radius` in pixels."""
    frames = []
    for x, y in path:
        frame = Image.new("RGB", size, background)
        paint_shape(ImageDraw.Draw(frame), shape, rgb, x * size[0], y * size[1], radius, Look())
        frames.append(frame)
    return frames

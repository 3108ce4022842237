"""A training or test sample: a chat whose assistant turns are the right answers."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class Picture:
    """An image part."""

    image: Image.Image


@dataclass(frozen=True)
class Clip:
    """A video part: frames of one size, `fps` frames a second."""

    frames: list[Image.Image]
    fps: float


Part = str | Picture | Clip


@dataclass(frozen=True)
class Turn:
    """One message; `role` is system, user or assistant."""

    role: str
    parts: list[Part]

    @property
    def text(self) -> str:
        """Return the turn's text without its pictures."""
        return "".join(part for part in self.parts if isinstance(part, str))


Chat = list[Turn]


def ask(question: str, *media: Part) -> Turn:
    """Build a user turn with the media before the question."""
    return Turn("user", [*media, question])


def answer(text: str) -> Turn:
    """Build an assistant turn."""
    return Turn("assistant", [text])

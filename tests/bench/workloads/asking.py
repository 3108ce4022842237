"""The four workloads: growing chats, many system prompts, one instruction, pictures asked much."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mlxq_schemas import Job
from pictures import COLORS, SHAPES, draw

WORDS = ("fox", "cat", "sun", "dog", "map", "key", "cup", "hat", "box", "pen", "bird", "fish")


@dataclass(frozen=True)
class Sizes:
    """How much of each; ``instruction`` in words of one token each."""

    chats: int = 4
    turns: int = 20
    systems: int = 200
    users: int = 5
    captions: int = 64
    instruction: int = 1000
    pictures: int = 8
    questions: int = 8
    answer: int = 12

    def short(self) -> Sizes:
        """So little that all of it takes seconds."""
        return replace(
            self,
            turns=4,
            systems=6,
            users=3,
            captions=5,
            instruction=120,
            pictures=3,
            questions=3,
            answer=6,
        )


@dataclass(frozen=True)
class Turn:
    """What a user says, after a picture (PNG) if there is one."""

    words: str
    picture: bytes | None = None

    def message(self) -> dict[str, Any]:
        """As in a job."""
        text = {"type": "text", "text": self.words}
        if self.picture is None:
            return {"role": "user", "content": [text]}
        url = "data:image/png;base64," + base64.b64encode(self.picture).decode()
        image = {"type": "image_url", "image_url": {"url": url}}
        return {"role": "user", "content": [image, text]}


@dataclass(frozen=True)
class Chat:
    """A user's turns. Each is asked when the one before it is answered."""

    turns: tuple[Turn, ...]
    system: str | None = None

    def job(self, answers: Sequence[str], tokens: int) -> Job:
        """The turn that follows ``answers``, with all that was said before; greedy."""
        messages: list[dict[str, Any]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn, answer in zip(self.turns, answers, strict=False):
            messages += [turn.message(), {"role": "assistant", "content": answer}]
        messages.append(self.turns[len(answers)].message())
        sampling = {"max_tokens": tokens, "ignore_eos": True}
        return Job.model_validate({"messages": messages, "sampling": sampling})


@dataclass(frozen=True)
class Workload:
    """Chats in the order in which they come; ``answer``: tokens of each answer."""

    name: str
    chats: tuple[Chat, ...]
    answer: int


def workloads(sizes: Sizes, seed: int = 0) -> list[Workload]:
    """All four."""
    made = {
        f"{sizes.chats} chats of {sizes.turns} turns": _growing(sizes, seed),
        f"{sizes.systems} system prompts x {sizes.users}": _systems(sizes, seed),
        f"one instruction of {sizes.instruction} words x {sizes.captions} pictures": _captions(
            sizes, seed
        ),
        f"{sizes.pictures} pictures x {sizes.questions} questions": _pictures(sizes, seed),
    }
    return [Workload(name, tuple(chats), sizes.answer) for name, chats in made.items()]


def _growing(sizes: Sizes, seed: int) -> list[Chat]:
    """Every other chat is about a picture, shown in its first turn."""
    rng = random.Random(seed)
    shown = _draw(sizes.chats)
    return [
        Chat(
            tuple(
                Turn(_say(rng, 12), shown[n] if n % 2 and not turn else None)
                for turn in range(sizes.turns)
            )
        )
        for n in range(sizes.chats)
    ]


def _systems(sizes: Sizes, seed: int) -> list[Chat]:
    rng = random.Random(seed)
    systems = [_say(rng, 80) for _ in range(sizes.systems)]
    questions = [_say(rng, 8) + "?" for _ in range(sizes.users)]
    asked = list(product(systems, questions))
    rng.shuffle(asked)
    return [Chat((Turn(question),), system) for system, question in asked]


def _captions(sizes: Sizes, seed: int) -> list[Chat]:
    instruction = _say(random.Random(seed), sizes.instruction)
    return [Chat((Turn("Caption:", picture),), instruction) for picture in _draw(sizes.captions)]


def _pictures(sizes: Sizes, seed: int) -> list[Chat]:
    rng = random.Random(seed)
    questions = [_say(rng, 8) + "?" for _ in range(sizes.questions)]
    asked = list(product(_draw(sizes.pictures), questions))
    rng.shuffle(asked)
    return [Chat((Turn(question, picture),)) for picture, question in asked]


def _say(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _draw(count: int) -> list[bytes]:
    """So many pictures, all different and of one size."""
    kinds = product(range(9), SHAPES, COLORS)
    pictures: list[bytes] = []
    for _, (cell, shape, color) in zip(range(count), kinds, strict=False):
        file = io.BytesIO()
        draw([(color, shape, cell)]).save(file, "PNG")
        pictures.append(file.getvalue())
    return pictures

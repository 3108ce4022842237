"""Captioning repeats itself: one long instruction over many pictures, one picture asked much."""

from __future__ import annotations

import pytest

from cache_session import Session, text
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.models.inputs import build_inputs
from pictures import COLORS, SHAPES, draw

PICTURES = {
    f"{color} {shape} {cell}": draw([(color, shape, cell)])
    for color in COLORS
    for shape in SHAPES
    for cell in (0, 4, 8)
}
INSTRUCTION = text(5, 1000)


def prompt(subject, name: str, *, image_first: bool = False):
    """The instruction as the system's turn (or the picture in front of all), then the picture."""
    image = {"type": "image"}
    said = {"type": "text", "text": INSTRUCTION}
    parts = [image, said] if image_first else [said, image]
    chat = [{"role": "user", "content": [*parts, {"type": "text", "text": "Caption:"}]}]
    processor = subject.loaded.processor
    words = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return build_inputs(processor, words, [PICTURES[name]], [name])


@pytest.fixture
def subject(load):
    return load("qwen3_vl")


def shared(subject) -> int:
    """Tokens of the instruction."""
    return len(subject.loaded.tokenizer(INSTRUCTION)["input_ids"])


def test_from_the_second_of_many_pictures_on_the_instruction_is_cached(subject, tmp_path):
    names = list(PICTURES)[:64]
    prompts = [prompt(subject, name) for name in names]
    assert shared(subject) >= 1000
    disk = DiskTier(tmp_path, max_bytes=1 << 30, layout=LAYOUT)
    session = Session(subject, disk=disk)
    session.ask(*prompts, tokens=1)
    assert session.cached_tokens[0] == 0
    assert min(session.cached_tokens[1:]) >= 0.95 * shared(subject)
    session.generator.close()

    restarted = Session(subject, disk=DiskTier(tmp_path, max_bytes=1 << 30, layout=LAYOUT))
    said = restarted.ask(*prompts[:8], tokens=6)
    assert min(restarted.cached_tokens) >= 0.95 * shared(subject)
    assert said == subject.alone(prompts[:8], 6)
    restarted.generator.close()


def test_with_the_picture_in_front_only_the_same_picture_shares(subject):
    session = Session(subject)
    first, again = (
        prompt(subject, "red circle 0", image_first=True),
        prompt(subject, "red circle 0", image_first=True),
    )
    other = prompt(subject, "blue circle 0", image_first=True)
    session.ask(first, tokens=1)
    session.ask(again, tokens=1)
    assert session.cached_tokens[-1] >= len(again.ids) - BLOCK
    assert session.ask(other, tokens=6) == subject.alone([other], 6)
    assert session.cached_tokens[-1] < BLOCK


def test_the_same_picture_twice_is_one_picture(subject):
    session = Session(subject)
    a, b = (prompt(subject, "red circle 0") for _ in range(2))
    session.ask(a)
    session.ask(b)
    stats = session.generator.stats()
    assert stats["vision_calls"] == 1
    assert stats["images_recalled"] == 1

"""With caches on, rows say what they say alone without any: over every family, hit or miss."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from cache_session import BLUE, EVERY_FAMILY, RED, Session, prepare, text
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.registry import adapter_for


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def subject(request, load):
    """Every family, in float32."""
    return load(request.param)


@dataclass(frozen=True)
class Script:
    """Prompts of a model, and what each says alone and without caches."""

    prompts: list[Prepared]
    alone: list[list[int]]


@pytest.fixture(scope="module")
def script(subject) -> Script:
    """Again; other images of equal size; both orders; text around; longer, cut, branched."""
    first, second = text(1), text(2)
    red, blue = {"red": RED}, {"blue": BLUE}
    asked = [
        (first, red),
        (first, red),
        (first, blue),
        (first, {**red, **blue}),
        (first, {**blue, **red}),
        (f"{first} {second}", red),
        (" ".join(first.split()[:40]), red),
        (" ".join([*first.split()[:41], *second.split()]), red),
        (first, {}),
        (f"{first} {second}", {}),
        (f"{first} {text(3)}", {}),
        ("Who?", blue),
    ]
    prompts = [prepare(subject, words, images) for words, images in asked]
    return Script(prompts, subject.alone(prompts, 10))


@pytest.mark.parametrize(("prefill_step", "rounds"), [(16, 1), (2048, 2)])
def test_turn_by_turn_with_caches_equals_alone_without(subject, script, prefill_step, rounds):
    session = Session(subject, prefill_step=prefill_step)
    for _ in range(rounds):
        for prompt, want in zip(script.prompts, script.alone, strict=True):
            assert session.ask(prompt) == [want]
    stats = session.generator.stats()
    assert stats["cached_tokens"] > 250 * rounds
    assert stats["prefix_bytes"] > 0


def test_all_at_once_with_caches_equals_alone_without(subject, script):
    session = Session(subject, max_rows=4, prefill_step=48, mixed_step=16)
    order = random.Random(4).sample(range(len(script.prompts)), len(script.prompts))
    said = session.ask(*(script.prompts[n] for n in order))
    assert said == [script.alone[n] for n in order]


def test_little_memory_changes_nothing(subject, script):
    """Blocks come and go all the time."""
    session = Session(subject, prefix_cache_bytes=150_000, feature_cache_bytes=20_000)
    assert [said for prompt in script.prompts for said in session.ask(prompt)] == script.alone
    stats = session.generator.stats()
    assert stats["prefix_bytes"] <= 150_000
    assert stats["feature_bytes"] <= 20_000


def test_a_picture_seen_before_is_not_encoded_again(showing):
    session = Session(showing)
    session.ask(prepare(showing, "Describe the image.", {"red": RED}))
    before = session.generator.stats()["vision_calls"]
    prompt = prepare(showing, "What else is there?", {"red": RED})
    assert session.ask(prompt) == showing.alone([prompt], 10)
    stats = session.generator.stats()
    assert stats["vision_calls"] == before == 1
    assert stats["images_recalled"] == 1


def test_text_in_front_is_shared_by_different_pictures(load):
    """In messages the instruction stands before the picture: it is cached from the second on."""
    subject = load("qwen3_vl")
    session = Session(subject)
    instruction = text(5, 300)

    def prompt(name, picture):
        parts = [
            {"type": "text", "text": instruction},
            {"type": "image"},
            {"type": "text", "text": "Go."},
        ]
        template = subject.loaded.processor
        shown = template.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        return build_inputs(subject.loaded.processor, shown, [picture], [name])

    session.ask(prompt("red", RED))
    assert session.cached == 0
    other = prompt("blue", BLUE)
    assert session.ask(other) == subject.alone([other], 10)
    front = int(adapter_for(subject.loaded.model).media_places(other.ids)[0])
    assert session.cached >= front - BLOCK
    assert session.cached >= 0.9 * len(instruction.split())


def test_running_rows_keep_their_own(load):
    """Rows that began from one block differ in what follows, and the block stays as it was."""
    subject = load("qwen3")
    session = Session(subject)
    common = text(6, 80)
    prompts = [prepare(subject, f"{common} {text(seed, 12)}", {}) for seed in range(10, 18)]
    want = subject.alone(prompts, 24)
    assert session.ask(prompts[0], tokens=24) == want[:1]
    for _ in range(2):
        assert session.ask(*prompts, tokens=24) == want
    assert session.cached >= 64


def test_preempted_rows_go_on_from_the_cache(load):
    subject = load("qwen2_vl")
    session = Session(subject, max_cache_bytes=1_500_000, max_rows=6)
    prompts = [prepare(subject, text(seed, 70), {}) for seed in range(6)]
    assert session.ask(*prompts, tokens=60) == subject.alone(prompts, 60)
    assert session.generator.stats()["cache_bytes"] == 0

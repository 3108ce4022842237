"""Who waits, who goes, who is sent back: and that none of it changes a row's text."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine import cohorts, generator
from mlxq_worker.engine.request import Request
from mlxq_worker.engine.waiting import WaitingLine
from pictures import draw


def test_a_failing_step_is_bisected_to_the_guilty_row(bundled_bench):
    """The model itself raises whenever one row is in the batch."""
    good = bundled_bench.requests(7, seed=11)
    guilty = Request("guilty", prompt_ids=list(range(100, 123)), sampling=Sampling(max_tokens=40))
    generator = bundled_bench.generator(max_rows=8)
    adapter = generator._adapter
    decode = adapter.decode

    def decode_or_raise(tokens, positions, cache):
        if any(
            p >= 22 and p == row.fed and row.request_id == "guilty" for p, row in _rows(positions)
        ):
            raise RuntimeError("cannot compute")
        return decode(tokens, positions, cache)

    def _rows(positions):
        batch = next(b for b in generator._decoding._batches if len(b) == len(positions))
        return zip(positions.tolist(), batch.rows, strict=True)

    adapter.decode = decode_or_raise
    generator.insert([*good[:3], guilty, *good[3:]])
    outcomes = bundled_bench.drain(generator)
    assert "cannot compute" in str(outcomes.pop("guilty").last.error)
    adapter.decode = decode
    assert outcomes == bundled_bench.solo(good)


def test_rows_preempted_for_memory_equal_solo_rows(bundled_bench, monkeypatch):
    """No growth is promised: rows that are admitted by their prompts outgrow the limit."""
    monkeypatch.setattr(generator, "GROWTH", 0)
    requests = bundled_bench.requests(8, seed=12, max_tokens=60, ignore_eos=True)
    one_row = 4 * 2 * 2 * 32 * 4 * 256
    stats = {}
    outcomes = bundled_bench.run(
        requests,
        before_step=lambda engine, step: stats.update(engine.stats()),
        max_rows=8,
        max_cache_bytes=int(one_row * 2.2),
    )
    assert outcomes == bundled_bench.solo(requests)
    assert stats["preempted"] > 0


def test_a_long_row_does_not_share_its_padding_with_short_ones(bundled_bench, monkeypatch):
    monkeypatch.setattr(cohorts, "SLACK", 512)
    short = bundled_bench.requests(6, seed=13, max_tokens=30, ignore_eos=True)
    long = Request(
        "long",
        prompt_ids=np.random.default_rng(0).integers(10, 1000, 1600).tolist(),
        sampling=Sampling(max_tokens=30, ignore_eos=True),
    )
    sizes = []
    outcomes = bundled_bench.run(
        [long, *short],
        before_step=lambda generator, step: sizes.append(sorted(generator.stats()["batches"])),
        max_rows=8,
        prefill_step=2048,
        mixed_step=2048,
    )
    assert [1, 6] in sizes
    assert outcomes == bundled_bench.solo([long, *short])


def test_a_medium_among_endless_text_waits_a_bounded_time(bundled_bench):
    """A text request every fifth step for ever: the image row still starts soon."""
    rng = random.Random(14)
    generator = bundled_bench.generator(max_rows=4, prefill_step=64, mixed_step=16)
    image = Request(
        "image",
        bundled_bench.prompt(("user", 1, "Describe the image.")),
        images=[draw([("red", "circle", 4)])],
    )
    first = None
    for step in range(400):
        if step == 20:
            generator.insert([image])
        if step % 5 == 0:
            text = f"Count from {rng.randint(1, 9)} to {rng.randint(10, 30)}."
            prompt = bundled_bench.prompt(("user", 0, text))
            generator.insert([Request(f"t{step}", prompt, sampling=Sampling(max_tokens=8))])
        if any(r.request_id == "image" for r in generator.next()):
            first = step
            break
    assert first is not None
    assert first - 20 <= 80


def test_short_prompts_overtake_a_long_one_but_not_for_ever(bundled_bench):
    long = Request("long", prompt_ids=[50] * 1500, sampling=Sampling(max_tokens=2))
    order = []
    generator = bundled_bench.generator(max_rows=8, prefill_step=64, mixed_step=64)
    generator.insert([long])
    generator.next()
    for step in range(300):
        short = Request(
            f"s{step}", prompt_ids=[60 + step % 50] * 64, sampling=Sampling(max_tokens=1)
        )
        generator.insert([short])
        order += [r.request_id for r in generator.next() if r.finished]
        if "long" in order:
            break
    assert order[0] == "s0"
    assert "long" in order


def test_low_priority_is_served_in_the_end(bundled_bench):
    generator = bundled_bench.generator(max_rows=1)

    def job(name, priority):
        return Request(
            name, prompt_ids=[40, 41], sampling=Sampling(max_tokens=1), priority=priority
        )

    generator.insert([job("low", -1)])
    done = []
    for step in range(2000):
        generator.insert([job(f"n{step}", 0)])
        done += [r.request_id for r in generator.next() if r.finished]
        if "low" in done:
            break
    assert "low" in done
    assert len(done) > 10


@pytest.mark.parametrize("seed", [None, 3])
def test_logprobs_are_those_of_the_model(bundled_bench, seed):
    prompt = bundled_bench.loaded.tokenizer("fox cat")["input_ids"]
    raw = []

    def record(tokens, logits):
        raw.append(np.array(logits))
        return logits

    sampling = Sampling(
        max_tokens=6, ignore_eos=True, temperature=0.0 if seed is None else 1.0, seed=seed
    )
    request = Request(
        "a", prompt_ids=prompt, sampling=sampling, logprobs=3, logits_processors=[record]
    )
    generator = bundled_bench.generator()
    generator.insert([request, *bundled_bench.requests(2)])
    responses = []
    while generator.has_work():
        responses += [r for r in generator.next() if r.request_id == "a"]
    assert len(responses) == 6
    for response, logits in zip(responses, raw, strict=True):
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert response.logprobs.id == response.token
        assert response.logprobs.logprob == pytest.approx(expected[response.token], abs=1e-4)
        top = sorted(range(len(expected)), key=lambda i: -expected[i])[:3]
        assert list(response.logprobs.top) == top


@pytest.mark.parametrize("count", [0, 1, 5, 64, 200])
def test_who_is_next_is_known_without_a_look_at_all(count):
    """The first of a hundred rows are those that are then taken, in order."""
    rng = random.Random(count)
    line = WaitingLine()
    for uid in range(100):
        request = Request(str(uid), prompt_ids=[1], priority=rng.randrange(3))
        line.add(SimpleNamespace(uid=uid, came=rng.randrange(500), request=request))
    for _ in range(30):
        line.pop()
    said = line.next_up(count)
    assert said == [line.pop() for _ in range(min(count, 70))]

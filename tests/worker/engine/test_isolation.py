"""Invariants I4 and I8: a fault stays in its row, and limits hold."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine.request import Request
from pictures import draw


class Lookup(Exception):
    pass


def raise_at_fifth(tokens, logits):
    if len(tokens) == 5:
        raise Lookup("five")
    return logits


def nan_at_third(tokens, logits):
    return logits * mx.nan if len(tokens) == 3 else logits


def test_faulty_rows_fail_alone(bundled_bench):
    good = bundled_bench.requests(12, seed=1)
    text = bundled_bench.prompt(("user", 1, "Describe the image in detail."))
    image = draw([("red", "circle", 4)])
    long = Sampling(max_tokens=60, ignore_eos=True)
    bad = [
        Request("no-image", prompt=text),
        Request("too-many", prompt=text, images=[image, image]),
        Request(
            "raises", prompt=text, images=[image], sampling=long, logits_processors=[raise_at_fifth]
        ),
        Request("in-prefill", prompt=text, images=[image], sampling=long),
        Request("in-decode", prompt=text, images=[image], sampling=long),
        Request("nothing"),
    ]

    def interfere(generator, step):
        progress = generator.prefill_progress("in-prefill")
        if progress and progress[0] > 0:
            generator.abort("in-prefill")
        if step == 40:
            generator.abort("in-decode")

    outcomes = bundled_bench.run([*bad, *good], before_step=interfere, max_rows=18, prefill_step=16)
    reasons = {request.request_id: outcomes.pop(request.request_id) for request in bad}
    assert {name: out.reason for name, out in reasons.items()} == {
        "no-image": "error",
        "too-many": "error",
        "raises": "error",
        "in-prefill": "cancelled",
        "in-decode": "cancelled",
        "nothing": "error",
    }
    assert "five" in str(reasons["raises"].last.error)
    assert len(reasons["raises"].tokens) == 5
    assert not reasons["in-prefill"].tokens
    assert reasons["in-decode"].tokens
    assert outcomes == bundled_bench.solo(good)


def test_custom_logits_processors_see_exactly_the_tokens_so_far(bundled_bench):
    seen: list[list[int]] = []

    def record(tokens, logits):
        seen.append(list(tokens))
        return logits

    requests = bundled_bench.requests(6, seed=2)
    watched = replace(requests[0], logits_processors=[record])
    outcomes = bundled_bench.run([watched, *requests[1:]], max_rows=6)
    assert outcomes == bundled_bench.solo(requests)
    tokens = outcomes[watched.request_id].tokens
    assert seen == [tokens[:n] for n in range(len(tokens))]


def test_nan_logits_of_the_model_end_the_row_with_an_error(bundled_bench):
    generator = bundled_bench.generator()
    adapter = generator._adapter
    decode = adapter.decode

    def broken(tokens, positions, cache):
        logits = decode(tokens, positions, cache)
        logits[0] = mx.nan
        return logits

    adapter.decode = broken
    requests = bundled_bench.requests(2, seed=4)
    generator.insert(requests)
    ends = {}
    while generator.has_work():
        ends.update({r.request_id: r for r in generator.next() if r.finished})
    assert {r.finish_reason for r in ends.values()} == {"error"}
    assert "NaN" in str(ends["r0"].error)


def test_an_abort_does_not_outlive_its_request(bundled_bench):
    request = bundled_bench.requests(1)[0]
    generator = bundled_bench.generator()
    generator.abort(request.request_id)
    assert generator.next() == []
    generator.insert([request])
    responses = []
    while generator.has_work():
        responses += generator.next()
    assert responses[-1].finish_reason in {"stop", "length"}


@pytest.mark.parametrize("prefill_step", [7, 1024])
def test_never_more_rows_than_allowed(bundled_bench, prefill_step):
    most = 0

    def watch(generator, step):
        nonlocal most
        stats = generator.stats()
        most = max(most, stats["prefilling"] + stats["decoding"])

    outcomes = bundled_bench.run(
        bundled_bench.requests(9, seed=5), before_step=watch, max_rows=3, prefill_step=prefill_step
    )
    assert most == 3
    assert len(outcomes) == 9


def test_no_tokens_wanted_gives_an_empty_result(bundled_bench):
    [outcome] = bundled_bench.run(bundled_bench.requests(1, max_tokens=0)).values()
    assert (outcome.text, outcome.tokens, outcome.reason) == ("", [], "length")


def test_the_context_ends_a_row(bundled_bench):
    request = Request(
        "a",
        prompt_ids=bundled_bench.loaded.tokenizer("Count from 1 to 60.")["input_ids"],
        sampling=Sampling(max_tokens=500, ignore_eos=True),
    )
    outcome = bundled_bench.run([request], context=30)["a"]
    assert outcome.reason == "length"
    assert outcome.last.usage.prompt_tokens + outcome.last.usage.completion_tokens == 30


def test_a_prompt_of_one_token(bundled_bench):
    requests = [
        Request(f"one{n}", prompt_ids=[10 + n], sampling=Sampling(max_tokens=6)) for n in range(3)
    ]
    mixed = [*requests, *bundled_bench.requests(3)]
    assert bundled_bench.run(mixed) == bundled_bench.solo(mixed)


def test_close_ends_every_row(bundled_bench):
    generator = bundled_bench.generator(max_rows=2)
    generator.insert(bundled_bench.requests(5, ignore_eos=True))
    generator.next()
    ended = generator.close()
    assert {(r.request_id, r.finish_reason) for r in ended} == {
        (f"r{n}", "cancelled") for n in range(5)
    }
    assert not generator.has_work()
    assert generator.next() == []


def test_higher_priorities_go_first(bundled_bench):
    requests = bundled_bench.requests(4, seed=6)
    for request, priority in zip(requests, (-1, 0, 1, 0), strict=True):
        request.priority = priority
    outcomes = bundled_bench.run(requests, max_rows=1)
    assert list(outcomes) == ["r2", "r1", "r3", "r0"]

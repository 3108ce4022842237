"""Invariant I1: a row's tokens in any batch are its tokens alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from near_logprobs import near


@pytest.mark.parametrize(
    ("max_rows", "prefill_step"), [(16, 2048), (5, 16), pytest.param(3, 1, marks=pytest.mark.slow)]
)
def test_batched_rows_equal_solo_rows(bench, max_rows, prefill_step):
    requests = bench.requests(14, seed=max_rows)
    together = bench.run(requests, max_rows=max_rows, prefill_step=prefill_step)
    assert together == bench.solo(requests)


def test_rows_that_join_at_random_steps_equal_solo_rows(bench):
    requests = bench.requests(16, seed=7)
    rng = random.Random(7)
    waiting = list(requests[2:])

    def join(generator, step):
        if waiting and (rng.random() < 0.3 or not generator.has_work()):
            generator.insert([waiting.pop()])

    together = bench.run(requests[:2], before_step=join, max_rows=6, prefill_step=64)
    assert together == bench.solo(requests)


def test_a_resumed_row_goes_on_as_if_it_had_never_stopped(bench):
    rng = random.Random(3)
    requests = [r for r in bench.requests(12, seed=3) if r.sampling.max_tokens > 5]
    whole = bench.solo(requests)
    resumed = []
    for request in requests:
        tokens = whole[request.request_id].tokens
        cut = rng.randrange(len(tokens))
        resumed.append(replace(request, prior_ids=tokens[:cut]))
    rest = bench.run(resumed, max_rows=4, prefill_step=16)
    # A recurrent state that is computed in slices rounds otherwise than token by token.
    tolerance = 1e-3 if bench.loaded.model.config.model_type == "qwen3_5" else 1e-4
    for request in resumed:
        before, after = whole[request.request_id], rest[request.request_id]
        assert [*request.prior_ids, *after.tokens] == before.tokens
        assert near(after.logprobs, before.logprobs[len(request.prior_ids) :], tolerance)
        assert before.text.endswith(after.text)
        assert after.last.usage == before.last.usage


def test_the_trained_model_answers_rightly_in_a_batch(bundled_bench):
    from mlxq_schemas import Sampling
    from mlxq_worker.engine.request import Request
    from pictures import COLORS, SHAPES, draw

    cases = [(color, shape) for color in COLORS for shape in SHAPES]
    prompt = bundled_bench.prompt(("user", 1, "Describe the image."))
    requests = [
        Request(
            f"{color} {shape}",
            prompt,
            images=[draw([(color, shape, 4)])],
            sampling=Sampling(max_tokens=20),
        )
        for color, shape in cases
    ]
    outcomes = bundled_bench.run(requests, max_rows=16)
    wrong = {name: out.text for name, out in outcomes.items() if not out.text.endswith(name)}
    assert len(wrong) <= 1, wrong

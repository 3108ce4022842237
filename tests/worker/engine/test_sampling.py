"""Each row is sampled by its own parameters, and by its own random numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine.request import Request
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.sampler import Sampler, random_keys
from mlxq_worker.engine.text import ByteLevelDetokenizer, StopMatcher


def with_sampling(request, **values):
    return replace(request, sampling=Sampling(max_tokens=20, **values))


def test_a_greedy_row_stays_greedy_beside_hot_ones(bundled_bench):
    greedy, *others = bundled_bench.requests(6, seed=1, max_tokens=20)
    hot = [with_sampling(r, temperature=1.5, seed=n) for n, r in enumerate(others)]
    together = bundled_bench.run([greedy, *hot])
    assert together[greedy.request_id] == bundled_bench.solo([greedy])[greedy.request_id]


def test_seeded_rows_draw_the_same_tokens_in_any_batch(bundled_bench):
    requests = [
        with_sampling(r, temperature=1.2, top_p=0.9, top_k=40, min_p=0.01, seed=n, ignore_eos=True)
        for n, r in enumerate(bundled_bench.requests(16, seed=2))
    ]
    together = bundled_bench.run(requests, max_rows=16)
    assert together == bundled_bench.solo(requests)
    other_seed = bundled_bench.run(
        [with_sampling(requests[0], temperature=1.2, seed=99, ignore_eos=True)]
    )
    assert other_seed["r0"].tokens != together["r0"].tokens


def test_a_seeded_row_resumes_with_the_same_draws(bundled_bench):
    request = with_sampling(bundled_bench.requests(1)[0], temperature=1.2, seed=5, ignore_eos=True)
    whole = bundled_bench.run([request])["r0"].tokens
    rest = bundled_bench.run([replace(request, prior_ids=whole[:8])])["r0"].tokens
    assert whole[:8] + rest == whole


@pytest.mark.parametrize("values", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_narrowest_filters_are_greedy(bundled_bench, values):
    request = bundled_bench.requests(1, max_tokens=20)[0]
    hot = with_sampling(request, temperature=2.0, seed=1, **values)
    assert bundled_bench.run([hot])["r0"].tokens == bundled_bench.solo([request])["r0"].tokens


def test_logit_bias_forces_and_bans(bundled_bench):
    request = bundled_bench.requests(1)[0]
    forced = bundled_bench.run([with_sampling(request, logit_bias={300: 100.0}, ignore_eos=True)])
    assert set(forced["r0"].tokens) == {300}


def test_penalties_match_a_plain_reference(bundled_bench):
    """Recomputed from the model's own logits, one row at a time, in numpy."""
    values = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4}
    prompt = bundled_bench.loaded.tokenizer("Count from 3 to 9. fox fox cat")["input_ids"]
    raw: list[np.ndarray] = []

    def record(tokens, logits):
        raw.append(np.array(logits.astype(mx.float32)))
        return logits

    request = Request(
        "a",
        prompt_ids=prompt,
        sampling=Sampling(max_tokens=15, ignore_eos=True, **values),
        logits_processors=[record],
    )
    other = bundled_bench.requests(3, seed=9)
    tokens = bundled_bench.run([request, *other])["a"].tokens
    for n, logits in enumerate(raw):
        counts = Counter(tokens[:n])
        for token in {*prompt, *counts}:
            value = logits[token]
            logits[token] = value / 1.3 if value > 0 else value * 1.3
        for token, count in counts.items():
            logits[token] -= 0.4 * count + 0.7
        assert int(np.argmax(logits)) == tokens[n]
    plain = bundled_bench.run([replace(request, logits_processors=[]), *other])["a"].tokens
    assert plain == tokens


def test_draws_follow_the_distribution(bundled_bench):
    """A chi-square of first tokens against the model's own probabilities, over many seeds."""
    prompt = bundled_bench.loaded.tokenizer("fox cat")["input_ids"]
    logits: list[np.ndarray] = []

    def record(tokens, values):
        logits.append(np.array(values.astype(mx.float32)))
        return values

    bundled_bench.run(
        [
            Request(
                "x", prompt_ids=prompt, sampling=Sampling(max_tokens=1), logits_processors=[record]
            )
        ]
    )
    scaled = logits[0] / 1.5
    shares = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    draws = 2000
    requests = [
        Request(str(n), prompt_ids=prompt, sampling=Sampling(max_tokens=1, temperature=1.5, seed=n))
        for n in range(draws)
    ]
    outcomes = bundled_bench.run(requests, max_rows=64)
    counts = Counter(out.tokens[0] for out in outcomes.values())
    top = np.argsort(-shares)[:12]
    expected = np.array([*(shares[top] * draws), (1 - shares[top].sum()) * draws])
    seen = np.array([counts[int(t)] for t in top])
    observed = np.array([*seen, draws - seen.sum()])
    keep = expected >= 5
    statistic = float((((observed - expected) ** 2) / np.maximum(expected, 1e-9))[keep].sum())
    degrees = max(1, int(keep.sum()) - 1)
    assert statistic < degrees + 5 * np.sqrt(2 * degrees)


def test_random_keys_are_fixed_and_distinct():
    seeds = np.arange(1000, dtype=np.uint64)
    keys = random_keys(seeds, np.zeros(1000, dtype=np.uint64))
    assert len({tuple(key) for key in keys.tolist()}) == 1000
    # The first output of the published splitmix64 for seed 0.
    first = random_keys(seeds[:1], np.array([0], dtype=np.uint64))
    assert first.tolist() == [[0xE220A839, 0x7B1DCDAF]]


COLD = (1e-320, 1e-45, 1e-40, 1e-38, 3e-37, 1e-30, 1e-12, 9e-6)


def test_temperatures_that_overflow_act_as_greedy(bench):
    requests = bench.texts(len(COLD), seed=61)
    cold = [
        replace(r, sampling=r.sampling.model_copy(update={"temperature": t, "seed": n}))
        for n, (r, t) in enumerate(zip(requests, COLD, strict=True))
    ]
    hot = [
        replace(r, request_id=f"hot {r.request_id}", sampling=Sampling(**values, seed=3))
        for r, values in zip(
            requests,
            ({"temperature": 1.5, "top_p": 0.5, "max_tokens": 4}, {"min_p": 0.2, "max_tokens": 4}),
            strict=False,
        )
    ]
    outcomes = bench.run([*cold, *hot])
    greedy = bench.solo(requests)
    assert {name: outcomes[name] for name in greedy} == greedy


@pytest.mark.parametrize("temperature", [10.0, 1e20, 1e38, 1e300, float("inf")])
def test_temperatures_of_any_size_stay_finite(bundled_bench, temperature):
    """Beyond what a job may say, too: all tokens are then as likely."""
    values = {"temperature": temperature, "top_k": 50, "top_p": 0.99, "min_p": 1e-6, "seed": 1}
    [request] = bundled_bench.texts(1, seed=62)
    request.sampling = request.sampling.model_copy(update=values)
    [out] = bundled_bench.run([request]).values()
    assert out.reason == "length"
    assert len(set(out.tokens)) > 5


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 10**9},
        {"top_k": 10**30},
        {"top_p": 1e-320},
        {"top_p": 1e-45},
        {"min_p": 1.0},
        {"min_p": 1e-320},
        {"repetition_penalty": 1e-320},
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 10.0},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0},
        {"logit_bias": {5: 100.0, 6: -100.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [1e-40, 1.0, 10.0])
def test_extreme_settings_end_well_and_as_alone(bundled_bench, values, temperature):
    requests = bundled_bench.texts(3, seed=64, max_tokens=6)
    extreme = {**values, "temperature": temperature, "seed": 5}
    requests[0].sampling = requests[0].sampling.model_copy(update=extreme)
    outcomes = bundled_bench.run(requests)
    assert outcomes == bundled_bench.solo(requests)
    assert outcomes["t0"].reason == "length"


def rows_of(*samplings: Sampling) -> list[Row]:
    return [
        Row(
            uid=n,
            request=Request(str(n), sampling=sampling),
            detokenizer=ByteLevelDetokenizer({}),
            stops=StopMatcher([]),
            eos=frozenset(),
            max_tokens=1,
            seed=n,
        )
        for n, sampling in enumerate(samplings)
    ]


@pytest.mark.parametrize("neighbour", [{"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.5}], ids=str)
def test_settings_that_are_off_cut_nothing_beside_a_row_that_filters(neighbour):
    """Sums of float32 shares reach 1 long before the last of many tokens."""
    vocab = 150_000
    rows = rows_of(
        Sampling(temperature=1.0), Sampling(temperature=1.0, **neighbour), Sampling(temperature=1.0)
    )
    sampler = Sampler(rows, [[] for _ in rows], vocab)
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(3, vocab)).astype(np.float32))
    kept = np.isfinite(np.array(sampler._filter(logits)))
    assert kept[0].all()
    assert kept[2].all()
    assert 0 < kept[1].sum() < vocab

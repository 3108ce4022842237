"""A row's log probabilities are its own, whoever joins or leaves, for every family."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import mlx.core as mx
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine.logprobs import Logprobs
from mlxq_worker.engine.request import Request
from mlxq_worker.engine.slots import Slots


def staggered(bench, count: int, seed: int) -> list[Request]:
    """Rows of which one ends at nearly every step."""
    requests = bench.texts(count, seed)
    return [
        replace(r, sampling=r.sampling.model_copy(update={"max_tokens": 2 + n}))
        for n, r in enumerate(requests)
    ]


def test_rows_that_end_leave_the_others_their_own(bench):
    requests = staggered(bench, 7, seed=21)
    silent = [replace(requests[0], request_id="silent", logprobs=None)]
    assert bench.run([*silent, *requests]) == bench.solo([*silent, *requests])


def test_rows_aborted_removed_and_joined_leave_the_others_their_own(bench):
    first, *rest = bench.texts(9, seed=22)
    late = list(rest[5:])
    uids: dict[str, int] = {}

    def interfere(generator, step):
        if step == 0:
            for request in [first, *rest[:5]]:
                [uids[request.request_id]] = generator.insert([request])
        if step == 4:
            generator.abort(first.request_id)
        if step == 6:
            generator.remove([uids.pop(rest[0].request_id)])
        if step in (5, 7, 8) and late:
            generator.insert([late.pop()])

    outcomes = bench.run([], before_step=interfere)
    assert outcomes.pop(first.request_id).reason == "cancelled"
    outcomes.pop(rest[0].request_id)
    assert len(outcomes) == 7
    assert outcomes == bench.solo(request for request in rest if request.request_id in outcomes)


@pytest.mark.parametrize("when", ["joined at once", "restarted"])
def test_sampled_rows_with_penalties_beside_rows_that_leave(bundled_bench, when):
    """What the sampler keeps by place follows its rows too."""
    hot = {"temperature": 1.1, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_p": 0.9}
    requests = [
        replace(r, sampling=Sampling(max_tokens=3 + 2 * n, ignore_eos=True, seed=n, **hot))
        for n, r in enumerate(bundled_bench.texts(6, seed=23))
    ]

    def interfere(generator, step):
        if when == "restarted" and step == 5:
            generator._send_back(next(iter(generator._decoding)))

    assert bundled_bench.run(requests, before_step=interfere) == bundled_bench.solo(requests)


def test_a_row_sent_back_and_taken_in_again_in_one_step_repeats_nothing(bench):
    """Its token that was not read yet is computed again, and reported once."""
    requests = bench.texts(4, seed=24)

    def interfere(generator, step):
        if step in (4, 6):
            generator._send_back(next(iter(generator._decoding)))

    assert bench.run(requests, before_step=interfere) == bench.solo(requests)


def slots(count: int) -> Slots:
    """Each place holds its own number, in everything."""
    column = mx.arange(count)
    return Slots(
        rows=tuple(range(count)),  # type: ignore[arg-type]
        tokens=column,
        faults=column,
        sampled=tuple(bool(n & 1) for n in range(count)),
        unread=tuple(bool(n & 2) for n in range(count)),
        logprobs=Logprobs(column, column[:, None], column[:, None]),
    )


def test_all_that_is_kept_by_place_is_filtered_in_one_place():
    places = random.Random(1).sample(range(8), 5)
    kept = slots(8).keep(places)
    assert {field.name for field in fields(kept)} == {
        *("rows", "tokens", "faults", "sampled", "unread", "logprobs")
    }
    assert list(kept.rows) == kept.tokens.tolist() == kept.faults.tolist() == places
    assert kept.sampled == tuple(bool(n & 1) for n in places)
    assert kept.unread == tuple(bool(n & 2) for n in places)
    assert [array.reshape(-1).tolist() for array in kept.logprobs.arrays] == [places] * 3


def test_newcomers_stand_behind_in_all_that_is_kept_by_place():
    joined = slots(3).joined(slots(2))
    assert len(joined) == 5
    assert [len(array) for array in joined.logprobs.arrays] == [5] * 3
    assert joined.logprobs.chosen[:3].tolist() == [0, 1, 2]
    assert len(joined.sampled) == len(joined.unread) == joined.tokens.size == joined.faults.size

"""Token ids that the model has no embedding for end their row before they reach it."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxq_schemas import Sampling
from mlxq_schemas.errors import InvalidJob
from mlxq_worker.engine.request import Prepared, Request
from mlxq_worker.models.adapter import Adapter

BEYOND = (0, 7, 10**6, 2**31 - 1, 2**32 + 5, 2**70)


def wrong_ids(vocabulary: int) -> list[int]:
    return [-1, -(2**40), *(vocabulary + more for more in BEYOND)]


def bad_requests(bench) -> list[Request]:
    vocabulary = bench.generator().vocabulary
    short = Sampling(max_tokens=5)
    requests: list[Request] = []
    for n, token in enumerate(wrong_ids(vocabulary)):
        requests += [
            Request(f"prompt {n}", prompt_ids=[5, token, 6], sampling=short),
            Request(f"last {n}", prompt_ids=[5, 6, token], sampling=short),
            Request(f"prepared {n}", prepared=Prepared([5, token, 6]), sampling=short),
            Request(f"prior {n}", prompt_ids=[5, 6], prior_ids=[7, token], sampling=short),
        ]
        if token >= 0:
            biased = Sampling(max_tokens=5, logit_bias={3: 1.0, token: 1.0})
            requests.append(Request(f"bias {n}", prompt_ids=[5, 6], sampling=biased))
    return requests


def test_ids_beyond_the_embedding_are_errors_of_their_rows(bench):
    vocabulary = bench.generator().vocabulary
    weights = bench.loaded.model.language_model
    [table] = [m for n, m in weights.named_modules() if n.endswith("embed_tokens")]
    assert vocabulary == table.weight.shape[0]
    bad, good = bad_requests(bench), bench.texts(3, seed=31)
    outcomes = bench.run([*bad[:20], *good, *bad[20:]], max_rows=4)
    for request in bad:
        error = outcomes.pop(request.request_id).last.error
        assert isinstance(error, InvalidJob)
        assert error.code == "invalid_job"
        assert f"0 to {vocabulary - 1}" in error.message
    assert outcomes == bench.solo(good)


def test_the_error_names_the_id_and_where_it_stands(bundled_bench):
    vocabulary = bundled_bench.generator().vocabulary
    sampling = Sampling(logit_bias={vocabulary: 1.0})
    [out] = bundled_bench.run([Request("a", prompt_ids=[5], sampling=sampling)]).values()
    assert out.last.error.message.startswith(f"a: logit_bias has the token id {vocabulary};")


def test_the_first_and_the_last_id_of_the_model_are_served(bench):
    last = bench.generator().vocabulary - 1
    media = bench.generator()._adapter.media_tokens
    ids = [n for n in (0, last) if n not in media]
    sampling = Sampling(max_tokens=3, ignore_eos=True, logit_bias={0: 0.5, last: 0.5})
    request = Request("a", prompt_ids=[*ids, 9], prior_ids=ids, sampling=sampling)
    assert bench.run([request])["a"].reason == "length"


def test_a_picture_whose_placeholder_the_model_lacks_fails_alone(bench):
    if not bench.shows:
        pytest.skip("takes no pictures")
    pictured, *good = [r for r in bench.requests(9, seed=32) if r.images][:3]
    from mlxq_worker.models.inputs import build_inputs

    prepared = build_inputs(bench.loaded.processor, pictured.prompt, pictured.images)
    media = bench.generator()._adapter.media_tokens
    foreign = [10**6 if token in media else token for token in prepared.ids]
    bad = replace(pictured, prompt=None, prepared=replace(prepared, ids=foreign))
    outcomes = bench.run([bad, *good])
    assert isinstance(outcomes.pop(bad.request_id).last.error, InvalidJob)
    assert outcomes == bench.solo(good)


class Configured:
    def __init__(self, **values: int) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize("quantised", [False, True])
def test_the_vocabulary_is_that_of_the_weights(quantised):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(96, 64)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language_model = Inner()
            self.config = Configured(vocab_size=128)

    model = Model()
    if quantised:
        nn.quantize(model, 32, 4)
    assert Adapter(model).vocabulary == 96


def test_a_head_with_more_ids_than_the_embedding_never_chooses_them(bundled_bench):
    """Such an id could not be fed again."""
    generator = bundled_bench.generator()
    adapter = generator._adapter
    decode = adapter.decode

    def wider(tokens, positions, cache):
        logits = decode(tokens, positions, cache)
        return mx.concatenate([logits, mx.full((logits.shape[0], 64), 1e4)], axis=-1)

    adapter.decode = wider
    requests = bundled_bench.texts(3, seed=33)
    generator.insert(requests)
    outcomes = bundled_bench.drain(generator)
    del adapter.decode
    assert outcomes == bundled_bench.solo(requests)
    assert np.max([out.tokens for out in outcomes.values()]) < adapter.vocabulary

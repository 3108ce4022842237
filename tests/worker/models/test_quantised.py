"""Keys and values in fewer bits: near to exact, in a batch as alone, refused where impossible."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.models.cache import KVCache

import tiny_models
from mlxq_schemas import Sampling
from mlxq_schemas.errors import ConfigError
from mlxq_worker.engine import BatchGenerator, Request
from mlxq_worker.models import caches
from mlxq_worker.models.load import load_model
from mlxq_worker.models.quantised import Quantisation, QuantisedBatch
from mlxq_worker.models.registry import adapter_for

EIGHT = Quantisation(8, 32)
FOUR = Quantisation(4, 32)
TOLERANCE = {EIGHT: 0.02, FOUR: 0.3}
"""Greatest difference of logits from exact ones, as a share of their spread."""


REFUSED = {
    "gemma4": "layers that share keys and values pass them on as they are",
    "qwen3_5": "its attention does not mask padding of quantised keys",
}


@pytest.fixture(
    scope="module", params=[name for name in tiny_models.FAMILIES if name not in REFUSED]
)
def loaded(request, tmp_path_factory):
    folder = tiny_models.build_wide(request.param, tmp_path_factory.mktemp(request.param))
    return load_model(str(folder), "float32")


def prompts(loaded) -> list[list[int]]:
    words = "fox cat sun dog map key cup hat box pen bird fish tree moon lake hill"
    return [loaded.tokenizer(words * n)["input_ids"] for n in (1, 3, 2)]


def logits(loaded, rows: list[list[int]], how: Quantisation | None, steps: int = 3) -> np.ndarray:
    """[rows, vocab] after some fixed tokens that are fed in decode."""
    adapter = adapter_for(loaded.model)
    own = []
    for row in rows:
        own.append(adapter.make_cache())
        adapter.prefill_text(row, 0, own[-1])
    batch = caches.merge(own, how)
    found = mx.zeros(1)
    for step in range(steps):
        places = np.array([len(row) + step for row in rows], dtype=np.int32)
        found = adapter.decode(mx.array([40 + step] * len(rows)), places, batch)
    return np.array(found)


@pytest.mark.parametrize("how", [EIGHT, FOUR], ids=["8 bits", "4 bits"])
def test_quantised_logits_are_near_to_exact_ones(loaded, how):
    rows = prompts(loaded)
    exact, near = logits(loaded, rows, None), logits(loaded, rows, how)
    off = np.abs(near - exact).max(axis=1) / np.ptp(exact, axis=1)
    assert 0 < off.max() < TOLERANCE[how]
    alone = np.concatenate([logits(loaded, [row], how) for row in rows])
    assert np.allclose(alone, near, atol=1e-4 * np.ptp(exact))


def test_rows_join_and_leave_quantised_batches(loaded):
    generator = BatchGenerator(
        loaded.model, loaded.processor, eos=frozenset(), quantisation=EIGHT, max_rows=4
    )
    said: dict[str, list[int]] = {}
    waiting = [(f"{n}", ids) for n, ids in enumerate([[50], *prompts(loaded), *prompts(loaded)])]
    step = 0
    while waiting or generator.has_work():
        if waiting and step % 3 == 0:
            name, ids = waiting.pop(0)
            sampling = Sampling(max_tokens=4 + 3 * (step % 4))
            generator.insert([Request(name, prompt_ids=ids, sampling=sampling)])
        for response in generator.next():
            assert response.error is None, response.error
            said.setdefault(response.request_id, []).append(response.token)
        step += 1
    assert len(said) == 7
    shorter, longer = sorted((said["1"], said["4"]), key=len)
    assert longer[: len(shorter)] == shorter


def test_short_rows_stay_exact(loaded):
    how = Quantisation(4, 32, start=1000)
    asked = [Request(str(n), prompt_ids=ids) for n, ids in enumerate(prompts(loaded))]
    for request in asked:
        request.sampling = Sampling(max_tokens=6)
    said = []
    for quantisation in (how, None):
        generator = BatchGenerator(
            loaded.model, loaded.processor, eos=frozenset(), quantisation=quantisation
        )
        generator.insert(asked)
        tokens = []
        while generator.has_work():
            tokens += [(r.request_id, r.token) for r in generator.next()]
        said.append(tokens)
    assert said[0] == said[1]


def test_eight_bits_take_less_memory():
    row = KVCache()
    ones = mx.ones((1, 2, 256, 64))
    row.update_and_fetch(ones, ones)
    batch = QuantisedBatch.of([row, row], EIGHT)
    assert batch.nbytes < 0.32 * 2 * row.nbytes


def test_heads_that_groups_do_not_divide_are_refused(load):
    subject = load("qwen3")
    with pytest.raises(ConfigError, match="--kv-group-size"):
        BatchGenerator(
            subject.loaded.model, subject.loaded.processor, quantisation=Quantisation(8, 64)
        )


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_cannot_read_them_are_refused(name, tmp_path):
    loaded = load_model(str(tiny_models.build_wide(name, tmp_path)), "float32")
    with pytest.raises(ConfigError, match=name):
        BatchGenerator(loaded.model, loaded.processor, quantisation=EIGHT)

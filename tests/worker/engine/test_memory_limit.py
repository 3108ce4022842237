"""``max_cache_bytes`` holds from the first row on, for every kind of cache, prefill included."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import tiny_models
from mlxq_schemas import Sampling
from mlxq_worker.engine import generator as generator_module
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request
from mlxq_worker.models import caches
from mlxq_worker.models.footprint import Footprint
from mlxq_worker.models.load import load_model
from mlxq_worker.models.quantised import Quantisation
from mlxq_worker.models.registry import adapter_for


def nbytes(cache: list[Any]) -> int:
    return sum(int(layer.nbytes) for layer in cache)


def texts(lengths: list[int], tokens: int) -> list[Request]:
    rng = random.Random(len(lengths))
    return [
        Request(
            f"m{n}",
            prompt_ids=[rng.randrange(20, 1000) for _ in range(length)],
            sampling=Sampling(max_tokens=tokens, ignore_eos=True),
            logprobs=1,
        )
        for n, length in enumerate(lengths)
    ]


class Meter:
    """Counts the bytes of all rows' caches whenever the model has computed, and between steps."""

    def __init__(self, generator: BatchGenerator, limit: int) -> None:
        self._generator = generator
        self._limit = limit
        self.most_rows = 0
        adapter = generator._adapter
        for name in ("decode", "prefill", "prefill_text"):
            setattr(adapter, name, self._counted(getattr(adapter, name)))

    def _counted(self, call: Any) -> Any:
        def counted(*args: Any) -> Any:
            found = call(*args)
            self.look()
            return found

        return counted

    def look(self, *_: Any) -> None:
        generator = self._generator
        rows = len(generator._prefilling) + len(generator._decoding)
        taken = generator.stats()["cache_bytes"]
        if rows > 1:
            self.most_rows = max(self.most_rows, rows)
            assert taken <= self._limit


def one_row(loaded: Any, tokens: int) -> int:
    """Bytes of one row's own cache after so many tokens, fed in slices."""
    adapter = adapter_for(loaded.model)
    cache = adapter.make_cache()
    for start in range(0, tokens, 32):
        adapter.prefill_text([9] * min(32, tokens - start), start, cache)
    return nbytes(cache)


@pytest.mark.parametrize("rows", [0.5, 3.4])
def test_the_limit_holds_whatever_comes(bench, rows):
    limit = int(one_row(bench.loaded, 300) * rows)
    requests = [*texts([40, 270, 1, 90], 8), *bench.requests(2, seed=51, max_tokens=8)]
    generator = bench.generator(max_cache_bytes=limit, max_rows=8, prefill_step=64, mixed_step=32)
    meter = Meter(generator, limit)
    generator.insert(requests)
    outcomes = bench.drain(generator, meter.look)
    assert outcomes == bench.solo(requests)
    assert (meter.most_rows > 1) == (rows > 2)


@pytest.mark.parametrize(("limit", "rows"), [(600_000, 0), (1_500_000, 2)])
def test_from_the_first_row_on(bundled_bench, limit, rows):
    """Nothing has been measured yet when the first are admitted. One page of this model takes
    655,360 bytes: at the lower limit each row runs alone."""
    requests = bundled_bench.texts(6, seed=52)
    generator = bundled_bench.generator(max_cache_bytes=limit)
    meter = Meter(generator, limit)
    generator.insert(requests)
    outcomes = bundled_bench.drain(generator, meter.look)
    assert outcomes == bundled_bench.solo(requests)
    assert meter.most_rows == rows


def test_prefilling_rows_give_way_to_older_ones_that_grow(bench, monkeypatch):
    """No growth is promised here, as if it were used up: the older row's next page takes the
    room of a younger one that is being fed."""
    monkeypatch.setattr(generator_module, "GROWTH", 0)
    old, young = texts([240, 200], 4)
    limit = int(one_row(bench.loaded, 240) * 2.2)
    generator = bench.generator(max_cache_bytes=limit, prefill_step=32, mixed_step=32)
    Meter(generator, limit)
    sent_back: list[str] = []
    send_back = generator._send_back

    def watch(row):
        sent_back.append(row.request_id if row.filling is not None else "")
        send_back(row)

    generator._send_back = watch
    generator.insert([old])
    outcomes = bench.drain(
        generator, lambda generator, step: generator.insert([young]) if step == 4 else None
    )
    assert outcomes == bench.solo([old, young])
    assert young.request_id in sent_back
    assert generator.stats()["preempted"] == len(sent_back)


def test_a_slice_that_does_not_fit_is_not_fed(bench, monkeypatch):
    """Three prompts whose tokens fit, but not the pages that they are fed into."""
    monkeypatch.setattr(generator_module, "GROWTH", 0)
    requests = texts([100, 90, 80], 3)
    limit = int(one_row(bench.loaded, 100) * 2.2)
    generator = bench.generator(max_cache_bytes=limit)
    Meter(generator, limit)
    generator.insert(requests)
    assert bench.drain(generator) == bench.solo(requests)
    assert generator.stats()["preempted"] > 0


def test_remembered_prefixes_count_too(bundled_bench):
    limit = int(one_row(bundled_bench.loaded, 300) * 2.5)
    requests = texts([200, 200, 150, 120, 90], 20)
    generator = bundled_bench.generator(
        max_cache_bytes=limit, prefix_cache_bytes=10**9, prefill_step=64
    )

    def look(generator, _):
        stats = generator.stats()
        if stats["decoding"] + stats["prefilling"] > 1:
            assert stats["cache_bytes"] + stats["prefix_bytes"] <= limit

    generator.insert(requests)
    assert bundled_bench.drain(generator, look) == bundled_bench.solo(requests)


@pytest.mark.parametrize("name", ["max_cache_bytes", "prefix_cache_bytes", "feature_cache_bytes"])
def test_sizes_of_0_are_off_and_negative_ones_refused(bundled_bench, name):
    requests = bundled_bench.texts(3, seed=53)
    assert bundled_bench.run(requests, **{name: 0}) == bundled_bench.solo(requests)
    with pytest.raises(ValueError, match="0 means off"):
        bundled_bench.generator(**{name: -1})


SLICES = (
    [1],
    [2],
    [300],
    [7, 9, 300, 1, 1, 255, 1],
    [256, 256, 1],
    [300, 213, 255, 10, 1],
    [30] * 4,
)


@pytest.mark.parametrize("slices", SLICES, ids=str)
def test_bytes_of_a_row_are_known_before_it_is_fed(bench, slices):
    adapter = adapter_for(bench.loaded.model)
    footprint, cache, fed = Footprint(adapter), adapter.make_cache(), 0
    for tokens in slices:
        expected = footprint.filled(cache, tokens)
        adapter.prefill_text([9] * tokens, fed, cache)
        fed += tokens
        assert nbytes(cache) == expected


@pytest.mark.parametrize("lengths", [[0, 0], [5, 0], [255, 3], [256], [40, 300, 7]], ids=str)
def test_growth_of_a_batch_is_known_before_it_comes(bench, lengths):
    adapter = adapter_for(bench.loaded.model)
    assert_growth_known(adapter, lengths, None, 20)


def assert_growth_known(adapter: Any, lengths: list[int], how: Any, steps: int) -> None:
    footprint = Footprint(adapter, how)
    own = [adapter.make_cache() for _ in lengths]
    for length, cache in zip(lengths, own, strict=True):
        if length:
            adapter.prefill_text([9] * length, 0, cache)
    batch = caches.merge(own, how)
    for step in range(steps):
        expected = nbytes(batch) + footprint.growth(batch, len(lengths))
        places = np.array([length + step for length in lengths], dtype=np.int32)
        adapter.decode(mx.array([9] * len(lengths)), places, batch)
        assert nbytes(batch) <= expected
        # Qwen 3.5 enlarges the caches of a row that is alone token by token.
        assert nbytes(batch) == expected or adapter.model.config.model_type == "qwen3_5"


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "llama"])
def test_quantised_batches_are_known_too(name, tmp_path):
    loaded = load_model(str(tiny_models.build_wide(name, tmp_path)), "float32")
    how = Quantisation(4, 32)
    for lengths in ([3, 200], [0, 0]):
        assert_growth_known(adapter_for(loaded.model), lengths, how, 3)
    limit = int(one_row(loaded, 300) * 2.3)
    generator = BatchGenerator(
        loaded.model, loaded.processor, quantisation=how, max_cache_bytes=limit, prefill_step=32
    )
    meter = Meter(generator, limit)
    generator.insert(texts([40, 100, 30, 200], 20))
    ended = 0
    while generator.has_work():
        ended += sum(r.finished and r.error is None for r in generator.next())
        meter.look()
    assert ended == 4
    assert meter.most_rows > 1

"""Invariant I1 for weights of 4 and 8 bits: in any batch, slice and cache as alone, on a CPU."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten

import tiny_models
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.models.load import load_model

QUICK = {("bundled", 4), ("qwen3_5", 8)}
"""A trained model and a recurrent one; the rest is marked slow."""

WEIGHTS = [
    pytest.param((name, bits), id=f"{name}-{bits}bit", marks=() if quick else pytest.mark.slow)
    for name in ("bundled", *tiny_models.FAMILIES)
    for bits in (4, 8)
    for quick in [(name, bits) in QUICK]
]


@pytest.fixture(scope="module", params=WEIGHTS)
def quantised(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bench_of: Any
) -> Any:
    name, bits = request.param
    folder = tiny_models.build_quantised(name, tmp_path_factory.mktemp(name), bits)
    loaded = load_model(str(folder))
    scaled = [name for name, _ in tree_flatten(loaded.model.parameters()) if "scales" in name]
    assert scaled
    return bench_of(loaded)


def test_rows_that_join_and_end_at_any_time_equal_solo_rows(quantised: Any) -> None:
    requests = quantised.requests(12, seed=11)
    rng = random.Random(11)
    waiting = list(requests[2:])

    def join(generator, _):
        if waiting and (rng.random() < 0.3 or not generator.has_work()):
            generator.insert([waiting.pop()])

    together = quantised.run(requests[:2], before_step=join, max_rows=5, prefill_step=48)
    assert together == quantised.solo(requests)


def test_resumed_rows_go_on_as_alone(quantised: Any) -> None:
    rng = random.Random(3)
    requests = [r for r in quantised.requests(8, seed=3) if r.sampling.max_tokens > 5]
    whole = quantised.solo(requests)
    cuts = {r.request_id: rng.randrange(len(whole[r.request_id].tokens)) for r in requests}
    resumed = [
        replace(r, prior_ids=whole[r.request_id].tokens[: cuts[r.request_id]]) for r in requests
    ]
    rest = quantised.run(resumed, max_rows=4, prefill_step=16)
    for request in resumed:
        assert [*request.prior_ids, *rest[request.request_id].tokens] == (
            whole[request.request_id].tokens
        )


def test_caches_in_memory_and_on_disk_change_no_text(quantised: Any, tmp_path: Path) -> None:
    requests = quantised.requests(8, seed=5)
    alone = quantised.solo(requests)

    def caching():
        return quantised.generator(
            prefix_cache_bytes=1 << 26,
            feature_cache_bytes=1 << 26,
            max_rows=4,
            identity=quantised.loaded.content,
            disk=DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1),
        )

    first = caching()
    for turn in range(2):
        first.insert(requests)
        assert quantised.drain(first) == alone, turn
    assert first.stats()["cached_tokens"] > 0
    first.close()
    second = caching()
    second.insert(requests)
    assert quantised.drain(second) == alone
    assert second.stats()["disk_hits"] > 0
    second.close()

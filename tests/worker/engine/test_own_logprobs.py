"""Log probabilities are of the model's own distribution, whatever the row does to its logits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine.request import Request

CHANGES: list[dict[str, Any]] = [
    {"logit_bias": {300: 100.0}},
    {"presence_penalty": 2.0, "frequency_penalty": 1.5, "repetition_penalty": 1.7},
    {"temperature": 3.0, "seed": 1, "top_k": 5, "top_p": 0.7, "min_p": 0.01},
    {"temperature": 0.01, "seed": 1},
]


@pytest.mark.parametrize("changed", [*CHANGES, "processor"])
def test_what_they_are_of(bundled_bench, changed: dict[str, Any] | str) -> None:
    raw: list[np.ndarray] = []

    def processor(tokens, logits):
        raw.append(np.array(logits.astype(mx.float32)))
        return logits.at[300].add(100.0) if changed == "processor" else logits

    settings = changed if isinstance(changed, dict) else {}
    request = Request(
        "a",
        prompt=bundled_bench.prompt(("user", 0, "Count from 3 to 12.")),
        sampling=Sampling(max_tokens=8, ignore_eos=True, **settings),
        logprobs=3,
        logits_processors=[processor],
    )
    others = [Request(f"o{n}", prompt="fox", sampling=Sampling(max_tokens=n)) for n in (2, 3)]
    generator = bundled_bench.generator()
    generator.insert([*others, request])
    found = []
    while generator.has_work():
        found += [r.logprobs for r in generator.next() if r.request_id == "a" and r.logprobs]
    assert len(found) == 8
    for logits, told in zip(raw, found, strict=False):
        own = logits - np.logaddexp.reduce(logits)
        assert told.logprob == pytest.approx(own[told.id], abs=1e-4)
        assert list(told.top) == np.argsort(-own, kind="stable")[:3].tolist()
        assert list(told.top.values()) == pytest.approx(sorted(own, reverse=True)[:3], abs=1e-4)


def test_they_stay_with_their_row_when_others_leave(bundled_bench) -> None:
    requests = [
        Request(
            str(n),
            prompt=bundled_bench.prompt(("user", 0, f"Count from {n} to 20.")),
            sampling=Sampling(max_tokens=n + 3, ignore_eos=True),
            logprobs=2,
        )
        for n in range(6)
    ]

    def told(rows: list[Request]) -> dict[str, list[tuple[float, dict[int, float]]]]:
        generator = bundled_bench.generator()
        generator.insert(rows)
        found: dict[str, list[tuple[float, dict[int, float]]]] = {r.request_id: [] for r in rows}
        while generator.has_work():
            for response in generator.next():
                if (one := response.logprobs) is not None:
                    assert one.id == response.token
                    found[response.request_id].append((one.logprob, one.top))
        return found

    together = told(requests)
    for request in requests:
        for (value, top), (own, own_top) in zip(
            together[request.request_id], told([request])[request.request_id], strict=True
        ):
            assert value == pytest.approx(own, abs=1e-4)
            assert top == pytest.approx(own_top, abs=1e-4)

"""The rate of a queue by itself."""

from __future__ import annotations

import os

import pytest

from bench.queue_rate import measure


@pytest.mark.bench
def test_jobs_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    rate = measure(2_000 if "MLXQ_TEST_SHORT" in os.environ else 20_000, workers=2, chars=8)
    with capsys.disabled():
        print(f"\n{rate}")
    assert rate.done > 0

"""How fast a count grows."""

from __future__ import annotations

from mlxq_worker.process.rates import Rate


def test_it_is_the_growth_over_the_window() -> None:
    rate = Rate(window=30.0)
    assert rate.update(0, 100.0) == 0.0
    assert rate.update(30, 110.0) == 3.0
    for second in range(120, 200, 10):
        steady = rate.update(second, float(second))
    assert steady == 1.0
    for second in range(200, 240, 10):
        still = rate.update(190, float(second))
    assert still == 0.0

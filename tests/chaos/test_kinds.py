"""Kinds of faults can be left out, or done alone, and the rest stays the same."""

from __future__ import annotations

import argparse

import pytest

from chaos.kinds import DAY, KINDS, Kinds, kinds_left_out
from chaos.run import Quotas


def test_without_and_only_are_each_others_rest() -> None:
    assert kinds_left_out("", "") == frozenset()
    assert kinds_left_out("flush, clocks", "") == {"flush", "clocks"}
    assert kinds_left_out("", "flush,kills") == set(KINDS) - {"flush", "kills"}


@pytest.mark.parametrize(("without", "only"), [("flushes", ""), ("", "x"), ("flush", "idle")])
def test_what_is_no_kind_is_refused(without: str, only: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kinds_left_out(without, only)


def test_what_is_left_out_has_no_quota() -> None:
    quotas = Quotas().within(Kinds(without=kinds_left_out("", "flush,cuts")))
    assert (quotas.kills, quotas.restarts, quotas.halves, quotas.slow, quotas.idle) == (0,) * 5
    assert (quotas.flush, quotas.cuts, quotas.jobs) == (5, 50, 2000)


def test_the_same_seed_draws_the_same_whatever_else_is_done() -> None:
    whole, part = Kinds(seed=3), Kinds(seed=3, without=frozenset({"flush"}))
    whole.rng("flush").random()
    assert whole.rng("kills").random() == part.rng("kills").random()
    assert Kinds(seed=4).rng("kills").random() != Kinds(seed=3).rng("kills").random()


def test_of_three_workers_one_is_far_ahead_and_one_far_behind() -> None:
    kinds = Kinds()
    days = [kinds.shift(number, "workers") / DAY for number in (1, 2, 3, 4)]
    assert 9 <= days[0] <= 10
    assert -10 <= days[1] <= -9
    assert (days[2], days[3] > 9) == (0, True)
    assert Kinds(without=frozenset({"clocks"})).shift(1, "workers") == 0

"""What two checkouts cost on the steady path, compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.steady_path import SETTINGS, Comparison, Round, compare, table

TREE = Path(__file__).parents[2]
NEEDS_OWN = pytest.mark.skipif(
    not (TREE / ".venv/bin/python").exists(), reason="this checkout has no .venv of its own"
)


@pytest.mark.slow
@NEEDS_OWN
def test_a_tree_costs_what_it_costs_itself():
    found = compare(TREE, TREE, rounds=1, tokens=16)
    assert [one.setting for one in found] == list(SETTINGS)
    for one in found:
        assert one.first.step > 0
        for side in (one.first, one.second):
            assert side.passes == 1
            assert side.waits >= 1
            assert side.queued >= 1
    # A wait, then a look at each of two arrays that are there. The SSD copies blocks too.
    for one in found[:2]:
        assert (
            (one.first.waits, one.first.queued) == (one.second.waits, one.second.queued) == (3, 1)
        )


@NEEDS_OWN
def test_code_of_another_tree_is_refused(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/.venv").symlink_to(TREE / ".venv")
    with pytest.raises(SystemExit, match="not that of the tree"):
        compare(tmp_path / "tree", TREE, rounds=1, tokens=2)


def test_counts_that_differ_are_both_shown():
    first, second = Round(0.01, 1.0, 1.0, 2.0, 1.0), Round(0.02, 2.0, 1.0, 3.0, 1.0)
    [*_, row] = table([Comparison("caches", first, second, 2.0, 1.9, 2.1, 2.0)]).splitlines()
    assert row == (
        "| caches | 10.00, 20.00 | 2.000 (1.900 to 2.100) | 2.000 | 1.00 | 2.00, 3.00 | 1.00 |"
    )

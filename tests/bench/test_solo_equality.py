"""Rows in a batch beside rows alone: what is counted is counted rightly."""

from __future__ import annotations

import json
import sys

import pytest

from bench import solo_equality
from bench.solo_equality import Line, measure


@pytest.mark.parametrize("weights", ["float32", "4bit-float32"])
def test_on_a_cpu_no_row_parts(tmp_path, weights):
    assert measure("llama", weights, tmp_path, 3) == Line("llama", weights, 3, 0, None)


def test_a_row_that_parts_is_counted_with_its_place(tmp_path, monkeypatch):
    real = solo_equality._run

    def run(loaded, prompts):
        tokens = real(loaded, prompts)
        if len(prompts) > 1:
            tokens[1][5] += 1
            tokens[2] = tokens[2][:9]
        return tokens

    monkeypatch.setattr(solo_equality, "_run", run)
    assert measure("llama", "float32", tmp_path, 4) == Line("llama", "float32", 4, 2, 7.0)


def test_it_prints_a_line_for_each(monkeypatch, capsys):
    asked = ["--family", "llama", "--weights", "8bit-float32", "--rows", "2", "--json"]
    monkeypatch.setattr(sys, "argv", ["bench.solo_equality", *asked])
    assert solo_equality.main() == 0
    *_, line = capsys.readouterr().out.splitlines()
    expected = {"family": "llama", "weights": "8bit-float32", "rows": 2, "parted": 0, "first": None}
    assert json.loads(line) == expected

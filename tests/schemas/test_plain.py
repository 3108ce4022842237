"""What is written can be read: whole text, strict JSON, one line."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxq_schemas.errors import MlxqError
from mlxq_schemas.plain import is_whole, plain, read_json, to_json, whole

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def strict(text: str) -> Any:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(VALUES)
def test_any_value_is_strict_json_on_one_line(value: Any) -> None:
    text = to_json(value)
    text.encode()
    assert len(text.splitlines()) == 1
    assert strict(text) == plain(value)


def test_what_json_lacks() -> None:
    value = {"a": math.nan, "b": [math.inf, -math.inf], "c": (1, 2), 4: "x\u2028y\0\x85", "d": {3}}
    assert strict(to_json(value)) == {
        "a": None,
        "b": [None, None],
        "c": [1, 2],
        "4": "x\u2028y\0\x85",
        "d": [3],
    }
    day = datetime.datetime(2031, 1, 2, 3, tzinfo=datetime.UTC)
    assert plain([day, day.date(), decimal.Decimal("1.50"), Path("a/b")]) == [
        "2031-01-02T03:00:00+00:00",
        "2031-01-02",
        "1.50",
        "a/b",
    ]
    with pytest.raises(TypeError, match="bytes"):
        to_json({"a": b"x"})


@given(ANY_TEXT)
def test_text_is_whole(text: str) -> None:
    whole(text).encode()
    assert (whole(text) == text) == is_whole(text)


def test_a_name_that_is_not_utf8_leads_back_to_its_file() -> None:
    assert whole(os.fsdecode(b"raw-\xff.png")) == r"raw-\xff.png"
    assert whole("half \ud83d") == r"half \ud83d"
    assert whole("a whole \U0001f600") == "a whole \U0001f600"


def test_messages_of_errors_are_whole() -> None:
    error = MlxqError("no file \udcff")
    assert error.message == str(error) == r"no file \xff"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]'])
def test_a_name_that_stands_twice(text: str) -> None:
    with pytest.raises(ValueError, match="'a' stands there twice"):
        read_json(text)


def test_nesting_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        read_json("[" * 200_000)

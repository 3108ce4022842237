"""The error tree: unique, documented codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxq_schemas import errors
from mlxq_schemas.errors import InvalidJob, JobError, MlxqError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def tree(kind: type[MlxqError] = MlxqError) -> Iterator[type[MlxqError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = list(tree())


def test_codes_are_unique() -> None:
    # A bare JobError is an InvalidJob whose reason has no class of its own.
    codes = [kind.code for kind in CLASSES if kind is not JobError]
    assert len(codes) == len(set(codes))
    assert JobError.code == InvalidJob.code


@pytest.mark.parametrize("kind", CLASSES)
def test_codes_are_names(kind: type[MlxqError]) -> None:
    assert re.fullmatch(r"[a-z_]+", kind.code)


@pytest.mark.parametrize("kind", CLASSES[1:])
def test_drawn_in_the_tree(kind: type[MlxqError]) -> None:
    assert re.search(rf"── {kind.__name__}\b", errors.__doc__ or "")


@pytest.mark.parametrize("kind", CLASSES)
def test_explained_on_the_page(kind: type[MlxqError]) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if f"`{kind.__name__}`" in line]
    assert any(f"`{kind.code}`" in row for row in rows), f"{kind.__name__} is not in docs/errors.md"


def test_page_has_no_code_that_is_gone() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {(kind.code, kind.__name__) for kind in CLASSES} == set(rows)


def test_message_is_the_text() -> None:
    error = errors.MediaNotFound("cat.png does not exist")
    assert (str(error), error.message, error.code) == (
        "cat.png does not exist",
        "cat.png does not exist",
        "media_not_found",
    )
    assert isinstance(error, JobError)

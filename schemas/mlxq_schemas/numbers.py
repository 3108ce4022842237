"""Numbers and switches as they were meant: ``true`` is no number, and ``"5"`` is a text."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Annotated, SupportsIndex

from pydantic import BeforeValidator, Strict


def _whole_number(value: object) -> object:
    """Some languages write 5 as 5.0; NumPy has integers of its own."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    return value


def _number(value: object) -> object:
    return float(value) if isinstance(value, Real) and not isinstance(value, bool | int) else value


Int = Annotated[int, Strict(), BeforeValidator(_whole_number)]
Float = Annotated[float, Strict(), BeforeValidator(_number)]
Bool = Annotated[bool, Strict()]

"""Times and durations as people write them, for options."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

import typer

from mlxq_schemas import quantities
from mlxq_schemas.usage import typed

_MOMENT: Final = "must be a time: unix seconds, or 2030-01-31T18:00 (or ...+01:00, ...Z)"


def duration(text: str | float) -> float:
    """Seconds of ``90``, ``90s``, ``1.5m``, ``2h`` or ``7d``."""
    try:
        return quantities.duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{typed(text)}: {error}") from error


def moment(text: str) -> float:
    """Unix seconds of a number, or of an ISO 8601 time (local, unless it names its zone)."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _iso(text)
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{typed(text)}: {_MOMENT}")
    return seconds


def _iso(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{typed(text)}: {_MOMENT}") from error

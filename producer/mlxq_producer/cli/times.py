"""Times and durations as people write them."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

import typer

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([smhd]?)\Z")


def duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``1.5m``, ``2h`` or ``7d``."""
    found = _DURATION.match(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 90, 90s, 15m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def moment(text: str) -> float:
    """Unix seconds of a number, or of an ISO 8601 time (local, unless it names its zone)."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _iso(text)
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{text!r} is no time")
    return seconds


def _iso(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no time: write unix seconds, or 2030-01-31T18:00 (or ...+01:00, ...Z)"
        ) from error

"""Sizes and durations as people write them: ``20GiB``, ``1.5G``, ``90s``, ``2h``."""

from __future__ import annotations

import re
from typing import Final

_STEPS: Final = "kmgt"
_SIZE_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{step}{ending}": 1000**i for i, step in enumerate(_STEPS, 1) for ending in ("", "b")},
    **{f"{step}i{ending}": 1024**i for i, step in enumerate(_STEPS, 1) for ending in ("", "b")},
}
_TIME_UNITS: Final[dict[str, float]] = {
    **dict.fromkeys(("", "s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\Z")

SIZE_FORM: Final = "must be a size: bytes, or 500MB, 1.5G (powers of 1000), 20GiB, 512Mi (of 1024)"
DURATION_FORM: Final = "must be a duration: 90, 90s, 15m, 2h or 7d"


def size(text: str | int) -> int:
    """Bytes. ``k M G T`` (also ``kB`` ...) are powers of 1000, ``Ki Mi Gi Ti`` of 1024.

    Raises :class:`ValueError` with what is allowed.
    """
    if isinstance(text, int):
        return text
    number, unit = _parted(text, SIZE_FORM)
    if unit not in _SIZE_UNITS:
        raise ValueError(SIZE_FORM)
    whole, dot, rest = number.partition(".")
    # In whole numbers: a float has not all digits of a large size.
    part = int(rest or 0) * _SIZE_UNITS[unit] // 10 ** len(rest) if dot else 0
    return int(whole or 0) * _SIZE_UNITS[unit] + part


def duration(text: str | float) -> float:
    """Seconds of ``90``, ``90s``, ``1.5m``, ``2h`` or ``7d``.

    Raises :class:`ValueError` with what is allowed.
    """
    if isinstance(text, int | float):
        return float(text)
    number, unit = _parted(text, DURATION_FORM)
    if unit not in _TIME_UNITS:
        raise ValueError(DURATION_FORM)
    return float(number) * _TIME_UNITS[unit]


def shown_size(count: int) -> str:
    """Bytes for people, in powers of 1024: ``20 GiB``, ``1.5 MiB``, ``17 bytes``."""
    if abs(count) < 1024:
        return f"{count} bytes"
    step = next((i for i in range(1, len(_STEPS)) if abs(count) < 1023.95 * 1024**i), len(_STEPS))
    digits = f"{count / 1024**step:,.1f}".removesuffix(".0")
    return f"{digits} {_STEPS[step - 1].upper()}iB"


def shown_duration(seconds: float) -> str:
    """Seconds for people, in the two largest units: ``45s``, ``2h 5m``, ``3d 4h``."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, left = divmod(left, length)
        if number or (unit == "s" and not parts):
            parts.append(f"{number}{unit}")
        if len(parts) == 2 or (parts and not left):
            break
    return " ".join(parts)


def _parted(text: str, form: str) -> tuple[str, str]:
    found = _NUMBER.match(text.strip().lower())
    if found is None:
        raise ValueError(form)
    return found[1], found[2]

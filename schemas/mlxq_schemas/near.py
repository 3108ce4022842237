"""A name that nobody knows, and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_ALIKE: Final = 0.75
"""A letter or two beside it. Lower, and words that merely share an ending count as alike."""


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that is ``name`` but for case, ``-`` for ``_``, or a slip of the hand."""
    plain = {_plain(one): one for one in sorted(known)}
    found = get_close_matches(_plain(name)[:80], plain, n=1, cutoff=_ALIKE)
    return plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``: did you mean NAME?``, or nothing where no known name is near."""
    meant = near(name, known)
    return "" if meant is None else f": did you mean {meant}?"


def _plain(name: str) -> str:
    return name.strip().casefold().replace("-", "_")

"""The kinds of faults by name, so that each can be left out, or done alone."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = {
    "kills": "workers end by SIGKILL",
    "freezes": "workers stand still for longer than their lease",
    "drains": "workers end in order, with little time",
    "producers": "producers end by SIGKILL and start again",
    "restarts": "the server ends and starts again",
    "replies": "replies are swallowed, requests held up",
    "cuts": "all connections of one side are cut",
    "halves": "connections are cut in the middle of a request or a reply",
    "slow": "links carry few bytes a second for a while",
    "idle": "the server closes idle connections",
    "flush": "FLUSHALL; producers send again what had not ended",
    "clocks": "workers' and producers' clocks are up to ten days wrong",
    "reuse": "ids are used again after expiry, cancel and forget",
    "times": "jobs with deadlines, and jobs whose time does not come",
}
DAY: Final = 86400.0


@dataclass(frozen=True)
class Kinds:
    """Those that a run does. Each draws from a source of its own, so that one may be left out
    without another run for the rest.
    """

    seed: int = 1
    without: frozenset[str] = frozenset()
    _sources: dict[str, random.Random] = field(default_factory=dict[str, random.Random])

    def __contains__(self, kind: str) -> bool:
        return kind not in self.without

    def rng(self, kind: str) -> random.Random:
        return self._sources.setdefault(kind, random.Random(f"{self.seed}-{kind}"))

    def shift(self, number: int, kind: str) -> float:
        """Seconds by which the clock of process ``number`` is ahead: the first is far ahead, the
        second far behind, the third right, and so on.
        """
        days = self.rng(f"{kind} clocks").uniform(9.0, 10.0)
        return (0.0, days * DAY, -days * DAY)[number % 3] if "clocks" in self else 0.0


def kinds_left_out(without: str, only: str) -> frozenset[str]:
    """From two lists with commas. Raises ``ArgumentTypeError`` for a name that is no kind."""
    if without and only:
        raise argparse.ArgumentTypeError("give --without or --only, not both")
    named = _named(without or only)
    return frozenset(KINDS) - named if only else named


def _named(text: str) -> frozenset[str]:
    names = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if unknown := sorted(names - set(KINDS)):
        raise argparse.ArgumentTypeError(
            f"no such kind: {_list(unknown)}; there are {_list(KINDS)}"
        )
    return names


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)

"""What a view shows of a run: its counts, its latest items, and its speed by one clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SPAN_SECONDS: Final = 30.0
"""The speed that is shown is that of so many seconds."""
SURE_SECONDS: Final = 5.0
SURE_ITEMS: Final = 5
"""Nobody is told when a run will end before it has worked for so long and done so many."""
_SAMPLES_A_SECOND: Final = 2
LATEST: Final = 200


@dataclass(frozen=True)
class Entry:
    """One item: its ``text`` as far as it is known, or the ``code`` and ``message`` of its failure.

    ``good``: it ended as it should.
    """

    name: str
    text: str = ""
    code: str | None = None
    message: str = ""
    prompt: str = ""
    ended: bool = True
    good: bool = True

    @property
    def failed(self) -> bool:
        """True if it failed, and should not have."""
        return self.code is not None and not self.good

    @property
    def why(self) -> str:
        """The message of a failure, without the name, which stands before it."""
        return self.message.removeprefix(f"{self.name}: ")


class Counts(NamedTuple):
    """Items that this run did or failed at, those that needed no work, and tokens made."""

    done: int = 0
    failed: int = 0
    before: int = 0
    tokens: int = 0

    @property
    def worked(self) -> int:
        """Items that this run did or failed at."""
        return self.done + self.failed

    @property
    def seen(self) -> int:
        """Items of which nothing is left to do."""
        return self.worked + self.before


@dataclass(frozen=True)
class _Sample:
    time: float
    worked: int
    tokens: int


@dataclass
class Board:
    """A run in numbers; ``counts`` gives them as they are now. ``total`` is None until it is known.
    Times are seconds of ``clock``.
    """

    title: str
    counts: Callable[[], Counts]
    total: int | None = None
    where: str = ""
    """Where the output goes."""
    stage: str = ""
    """What is being done instead of work; empty while work is under way."""
    clock: Callable[[], float] = time.monotonic
    latest: deque[Entry] = field(default_factory=lambda: deque[Entry](maxlen=LATEST))
    """Items that have ended, the last one last."""
    under_way: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _samples: deque[_Sample] = field(default_factory=deque[_Sample])

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """All is ready: time and speed count from here."""
        self.stage = ""
        self.began = self.clock()
        self._samples.clear()
        self._sample()

    def show(self, entry: Entry) -> None:
        """An item has begun, grown or ended."""
        if entry.ended:
            self.under_way.pop(entry.name, None)
            self.latest.append(entry)
        else:
            self.under_way[entry.name] = entry

    @property
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return self.clock() - self.began

    def speed(self) -> tuple[float, float]:
        """Items and tokens a second, of late."""
        self._sample()
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last.time - first.time, 1e-6)
        return (last.worked - first.worked) / seconds, (last.tokens - first.tokens) / seconds

    def average(self) -> tuple[float, float]:
        """Items and tokens a second, since the work began."""
        counts, seconds = self.counts(), max(self.elapsed, 1e-6)
        return counts.worked / seconds, counts.tokens / seconds

    def left(self) -> float | None:
        """Seconds to the end, at this speed; None while that would be a guess."""
        counts = self.counts()
        if self.total is None or counts.worked < SURE_ITEMS or self.elapsed < SURE_SECONDS:
            return None
        items, _ = self.speed()
        return max(self.total - counts.seen, 0) / items if items > 0 else None

    def _sample(self) -> None:
        now, counts = self.clock(), self.counts()
        samples = self._samples
        if len(samples) > 1 and now - samples[-2].time < 1 / _SAMPLES_A_SECOND:
            samples.pop()
        samples.append(_Sample(now, counts.worked, counts.tokens))
        while len(samples) > 2 and samples[1].time <= now - SPAN_SECONDS:
            samples.popleft()

"""A folder watched for pictures: each is captioned once it is completely written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mlxq_producer.client import Producer
from mlxq_producer.errors import OutputInUse
from mlxq_producer.pipeline.folders import walk
from mlxq_producer.pipeline.item import Item, Row, printable
from mlxq_producer.pipeline.pictures import PassedOver
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.run import Run
from mlxq_producer.pipeline.sources import Sources

_TEMPORARY: Final = (".", "~", "_tmp", "tmp_")
"""Beginnings of names that programs give to files that they are still writing."""
_UNFINISHED: Final = frozenset({".part", ".partial", ".crdownload", ".download", ".tmp"})
"""Suffixes of such names."""

Look = tuple[int, int]
"""Size and time of change (ns) of a file."""


@dataclass(frozen=True)
class Found(Sources):
    """Files of the first source, a folder."""

    paths: Sequence[Path] = ()

    def check(self) -> None:
        """All were seen just now."""

    def items(self, over: PassedOver | None = None) -> Iterator[Item]:
        """One item a file."""
        del over
        for path in self.paths:
            name = printable(path.relative_to(self.given[0]))
            yield Item(printable(path), path, relative=name)


@dataclass
class Watch:
    """Looks at a folder again and again; ``plan`` says what becomes of what is new.

    What was done is remembered in the ledger of the folder, so that a new watch goes on where
    the last one ended.
    """

    folder: Path
    plan: Plan
    producer: Producer
    each: Callable[[Row], object]
    failed: bool = False
    """Whether a file was met that has no caption, now or earlier."""
    passed: Callable[[PassedOver], object] = lambda _: None
    """Hears once of each file that is passed over; of one that may still be written, when two looks
    find it the same."""
    edited: Callable[[str], object] = lambda _: None
    """Hears of each caption that was edited, and is kept."""
    waiting: int = 0
    """Files that may still be written, of those that would be passed over."""
    _last: dict[Path, Look] = field(default_factory=dict[Path, Look])
    _given: dict[Path, Look] = field(default_factory=dict[Path, Look])
    _told: dict[Path, str] = field(default_factory=dict[Path, str])
    _resting: dict[Path, Look] = field(default_factory=dict[Path, Look])

    def look(self) -> int:
        """Caption the files that are as they were at the last look; returns how many there are
        that are still being written.
        """
        passed: dict[Path, str] = {}
        unsure: dict[Path, tuple[Look, str]] = {}
        now = dict(self._files(passed, unsure))
        self._tell(passed, unsure)
        fresh = {path: look for path, look in now.items() if self._given.get(path) != look}
        whole = {path: look for path, look in fresh.items() if self._last.get(path) == look}
        self._last = now
        if whole and self._caption(sorted(whole)):
            self._given |= whole
            return len(fresh) - len(whole)
        return len(fresh)

    def _files(
        self, passed: dict[Path, str], unsure: dict[Path, tuple[Look, str]]
    ) -> Iterator[tuple[Path, Look]]:
        for path in walk(self.folder, passed.__setitem__):
            try:
                status = path.stat()
            except OSError:
                continue  # gone since it was listed
            look = status.st_size, status.st_mtime_ns
            if path.name.lower().startswith(_TEMPORARY):
                unsure[path] = look, "with a temporary name"
            elif not status.st_size:
                unsure[path] = look, "empty"
            else:
                yield path, look

    def _tell(self, passed: dict[Path, str], unsure: dict[Path, tuple[Look, str]]) -> None:
        for path, (look, kind) in unsure.items():
            if self._resting.get(path) == look:
                passed[path] = kind
        self._resting = {path: look for path, (look, _) in unsure.items()}
        self.waiting = len(unsure.keys() - passed.keys())
        over = PassedOver()
        for path, kind in passed.items():
            if self._told.get(path) != kind and kind not in _UNFINISHED:
                over.add(kind)
        self._told = passed
        if over:
            self.passed(over)

    def _caption(self, paths: Sequence[Path]) -> bool:
        """False if another run writes there just now."""
        plan = replace(self.plan, sources=Found([str(self.folder)], paths=paths))
        try:
            run = Run(plan, self.producer)
        except OutputInUse:
            return False
        for row in run.rows():
            self.each(row)
        for name in run.summary.edited_files:
            self.edited(name)
        self.failed |= not run.summary.ok
        return True

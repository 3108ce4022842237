"""A folder watched for pictures: each is captioned once it is completely written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mlxq_producer.client import Producer
from mlxq_producer.errors import OutputInUse
from mlxq_producer.pipeline.item import Item, Row, printable
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.run import Run
from mlxq_producer.pipeline.sources import Sources, walk

_TEMPORARY: Final = (".", "~", "_tmp", "tmp_")
"""Beginnings of names that programs give to files that they are still writing."""

Look = tuple[int, int]
"""Size and time of change (ns) of a file."""


@dataclass(frozen=True)
class Found(Sources):
    """Files of the first source, a folder."""

    paths: Sequence[Path] = ()

    def items(self) -> Iterator[Item]:
        """One item a file."""
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
    _last: dict[Path, Look] = field(default_factory=dict[Path, Look])
    _given: dict[Path, Look] = field(default_factory=dict[Path, Look])

    def look(self) -> int:
        """Caption the files that are as they were at the last look; returns how many there are
        that are still being written.
        """
        now = dict(self._files())
        fresh = {path: look for path, look in now.items() if self._given.get(path) != look}
        whole = {path: look for path, look in fresh.items() if self._last.get(path) == look}
        self._last = now
        if whole and self._caption(sorted(whole)):
            self._given |= whole
            return len(fresh) - len(whole)
        return len(fresh)

    def _files(self) -> Iterator[tuple[Path, Look]]:
        for path in walk(self.folder):
            if path.name.lower().startswith(_TEMPORARY):
                continue
            try:
                status = path.stat()
            except OSError:
                continue  # gone since it was listed
            if status.st_size:
                yield path, (status.st_size, status.st_mtime_ns)

    def _caption(self, paths: Sequence[Path]) -> bool:
        """False if another run writes there just now."""
        plan = replace(self.plan, sources=Found([str(self.folder)], paths=paths))
        try:
            run = Run(plan, self.producer)
        except OutputInUse:
            return False
        for row in run.rows():
            self.each(row)
        self.failed |= not run.summary.ok
        return True

"""Counts of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from mlxq_producer.pipeline.item import printable
from mlxq_producer.pipeline.pictures import PassedOver

FILES_KEPT: Final = 1000
"""Files that a summary names."""


@dataclass
class Reason:
    """How many items failed so, and the first of them."""

    example: str
    items: int = 0


@dataclass
class Summary:
    """What a run came to. Items: ``done`` and ``failed`` in this run; ``skipped`` were done by an
    earlier one, ``kept`` have files that are not ours or were edited, ``still_failed`` failed
    earlier, ``repeated`` were named before, ``left_out`` were not asked for (other shards; with
    ``retry_failed`` what never failed), ``dropped`` were under way when the run was interrupted.
    """

    done: int = 0
    failed: int = 0
    skipped: int = 0
    kept: int = 0
    still_failed: int = 0
    repeated: int = 0
    left_out: int = 0
    dropped: int = 0
    reused: int = 0
    """Of those done or failed: items that no job was needed for, for example duplicates."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    edited: int = 0
    """Sidecar files that are not as mlxq wrote them, and are kept."""
    edited_files: list[str] = field(default_factory=list[str])
    """The first thousand of them."""
    passed_over: PassedOver = field(default_factory=PassedOver)
    """Files that were found and are no pictures that can be read, by suffix."""
    reasons: dict[str, Reason] = field(default_factory=dict[str, "Reason"])
    """Why items of this run and of earlier ones failed, by error code."""

    def add_edited(self, *paths: Path) -> None:
        """Files were edited, and are kept."""
        self.edited += len(paths)
        self.edited_files += map(printable, paths[: FILES_KEPT - len(self.edited_files)])

    def add_failure(self, source: str, code: str | None) -> None:
        """An item has no caption, for this reason."""
        reason = self.reasons.setdefault(code or "failed", Reason(source))
        reason.items += 1

    @property
    def items(self) -> int:
        """Items of which nothing is left to do in this run."""
        at_work = self.done + self.failed
        return at_work + self.skipped + self.kept + self.still_failed + self.repeated

    @property
    def found(self) -> int:
        """All that the sources gave: each is counted in one of the other numbers."""
        return self.items + self.left_out + self.dropped + self.passed_over.total()

    @property
    def ok(self) -> bool:
        """True if no item is without its caption."""
        return not self.failed and not self.still_failed

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"found": self.found, "items": self.items, **asdict(self)}

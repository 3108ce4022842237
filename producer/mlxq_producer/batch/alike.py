"""A batch whose first lines all fail for one reason: the rest would, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mlxq_producer.batch.rows import Row
from mlxq_producer.errors import BatchFailing

FIRST: Final = 20
"""Rows that are looked at."""


@dataclass
class Alike:
    """Looks at the first rows of a run. ``over``: it has seen enough, and nothing is wrong."""

    over: bool = False
    code: str = ""
    message: str = ""
    failed: int = 0

    def see(self, row: Row) -> None:
        """Look at a row."""
        error = row["error"]
        if self.over or error is None or self.code not in {"", error["code"]}:
            self.over = True
            return
        self.code, self.message = error["code"], error["message"]
        self.failed += 1

    def check(self) -> None:
        """Raise :class:`BatchFailing` once the first rows have all failed alike."""
        if not self.over and self.failed >= FIRST:
            raise BatchFailing(
                f"the first {self.failed} lines all failed with {self.code} ({self.message}); "
                "mend that and run again with --retry-failed, or go on with --keep-going"
            )

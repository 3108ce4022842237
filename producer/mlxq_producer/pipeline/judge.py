"""What an item needs: nothing, a row from what is known, or a job."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mlxq_producer.pipeline.item import Item, Outcome
from mlxq_producer.pipeline.ledger import Known, Ledger
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.sidecars import Sidecars
from mlxq_schemas.errors import MlxqError

Action = Literal[
    "done", "failed", "kept", "edited", "repeated", "left out", "reuse", "caption", "refuse"
]


@dataclass(frozen=True)
class Verdict:
    """What is to be done about an item, and what is known for it."""

    action: Action
    item: Item
    prompt: str = ""
    key: str = ""
    stamp: str = ""
    seen: str | None = None
    digest: str | None = None
    outcome: Outcome | None = None
    known: Known | None = None
    edited: Sequence[Path] = ()
    """The item's files, all of them edited, where the action is ``edited``."""


@dataclass
class Judge:
    """Decides what an item needs; changes nothing but the note that the run has met it."""

    plan: Plan
    ledger: Ledger
    beside: Sidecars
    visit: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def judge(self, item: Item) -> Verdict:
        """The verdict on one item."""
        known = self.ledger.item(item.name)
        try:
            if item.error is not None:
                raise item.error
            prompt = self.plan.prompt.render(item.values)
            seen, digest = self._digest(item, known)
            key = self.plan.key(digest, prompt)
        except MlxqError as error:
            return self._unreadable(item, known, error)
        stamp = f"{key}:{self.plan.post.digest()}"
        item, known, repeated = self._told_apart(item, known, stamp, key[:8])
        if repeated:
            return Verdict("repeated", item)
        found = Verdict("caption", item, prompt, key, stamp, seen, digest, known=known)
        return self._decide(found, known)

    def _decide(self, found: Verdict, known: Known | None) -> Verdict:
        row = None if known is None else known.row
        if known is not None and row is not None and known.stamp == found.stamp:
            if row.ok:
                return replace(found, action="done")
            if not self.plan.retry_failed:
                return replace(found, action="failed")
        elif self.plan.retry_failed and (row is None or row.ok):
            return replace(found, action="left out")
        if self.plan.existing == "skip" and (kept := self._kept(found, known)) is not None:
            return kept
        outcome = self.ledger.outcome(found.key)
        if outcome is not None and (outcome.ok or not self.plan.retry_failed):
            return replace(found, action="reuse", outcome=outcome)
        return found

    def _kept(self, found: Verdict, known: Known | None) -> Verdict | None:
        """The verdict where sidecars are there that must stay, so that no job is needed."""
        item = found.item
        if known is None:
            if not self.beside.any_there(item):
                return None
            error = self.beside.taken(item, self.ledger)
            if error is None:
                return replace(found, action="kept")
            return replace(found, action="refuse", outcome=Outcome.failure(error))
        if not self.plan.outputs and (edited := self.beside.all_edited(item, self.ledger)):
            return replace(found, action="edited", edited=edited)
        return None

    def _digest(self, item: Item, known: Known | None) -> tuple[str | None, str]:
        """The content's digest; a file that looks unchanged is not read again."""
        seen = item.seen()
        if seen is not None and known is not None and known.seen == seen and known.digest:
            return seen, known.digest
        return seen, item.digest()

    def _told_apart(
        self, item: Item, known: Known | None, stamp: str, mark: str
    ) -> tuple[Item, Known | None, bool]:
        """The item, what is known of it, and whether this run has met it before.

        One with the name of another, whose row must stay, is called by its ``mark`` too.
        """
        if not self.ledger.visit(item.name, self.visit):
            return item, known, False
        if known is not None and known.want == stamp:
            return item, known, True
        item = replace(item, name=f"{item.name}#{mark}")
        known = self.ledger.item(item.name)
        return item, known, self.ledger.visit(item.name, self.visit)

    def _unreadable(self, item: Item, known: Known | None, error: MlxqError) -> Verdict:
        mark = hashlib.sha256(error.message.encode(errors="replace")).hexdigest()[:8]
        stamp = f"unreadable:{error.code}:{mark}"
        item, known, repeated = self._told_apart(item, known, stamp, mark)
        if repeated:
            return Verdict("repeated", item)
        if known is not None and known.stamp == stamp and not self.plan.retry_failed:
            return Verdict("failed", item, stamp=stamp, known=known)
        outcome = Outcome.failure(error)
        return Verdict("refuse", item, stamp=stamp, outcome=outcome, known=known)

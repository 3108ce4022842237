"""What caches are given: one row for each way of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.workloads.ideal import NEVER, Room
from mlxq_worker.config import WorkerConfig

AMPLE = NEVER
TIGHT = 1 / 3
ROWS = 16


@dataclass(frozen=True)
class Wanted:
    """Blocks and bytes that a workload stores where there is room for all of it."""

    blocks: int
    block_bytes: int
    pictures: int
    picture_bytes: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Wanted:
        """By the counters of a generator with ample memory."""
        sizes: list[int] = []
        for kind in ("prefix", "feature"):
            count = stats[f"{kind}_stored"]
            sizes += [count, stats[f"{kind}_stored_bytes"] // count if count else 0]
        return cls(*sizes)


@dataclass(frozen=True)
class Setting:
    """``memory`` and ``folder``: shares of what the workload wants; ``folder`` None: no folder.

    ``ideal``: the share that the least is computed for, if it is not the sum of both. ``more``:
    other settings of a worker.
    """

    name: str
    memory: float
    folder: float | None = None
    ideal: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passes(self) -> tuple[str, ...]:
        """Without a folder a restart is a cold start."""
        return ("cold", "warm") if self.folder is None else ("cold", "warm", "restart")

    def config(self, wanted: Wanted | None, model: str | None, folder: Path) -> WorkerConfig:
        """A worker's settings; ``wanted`` may be missing where no share is asked for."""
        fields: dict[str, Any] = {"model": model, "dtype": "float32", "max_rows": ROWS}
        if self.memory != AMPLE:
            fields["prefix_cache_bytes"] = fields["feature_cache_bytes"] = 0
        if wanted is not None and self.memory != AMPLE:
            blocks, pictures = wanted.blocks * self.memory, wanted.pictures * self.memory
            fields["prefix_cache_bytes"] = int(blocks) * wanted.block_bytes
            fields["feature_cache_bytes"] = int(pictures) * wanted.picture_bytes
        if self.folder is not None:
            fields["cache_dir"] = folder
            if wanted is not None and self.folder != AMPLE:
                whole = wanted.blocks * wanted.block_bytes
                whole += wanted.pictures * wanted.picture_bytes
                fields["cache_dir_bytes"] = max(1, int(whole * self.folder))
        return WorkerConfig(**{**fields, **self.more}, name="workloads")

    def room(self, wanted: Wanted) -> Room:
        """The same, for the ideal."""
        kept = self.folder or 0
        share = self.memory + kept if self.ideal is None else self.ideal
        kept = min(kept, share)
        blocks, pictures = wanted.blocks, wanted.pictures
        return Room(*(_fit(n, s) for s in (share, kept) for n in (blocks, pictures)))


def _fit(count: int, share: float) -> float:
    return NEVER if share == AMPLE else int(count * share)


OFF = Setting("off", memory=0)
SETTINGS = (
    Setting("ample", memory=AMPLE),
    Setting("ample, SSD", memory=AMPLE, folder=AMPLE),
    Setting("tight", memory=TIGHT),
    Setting("tight, SSD", memory=TIGHT, folder=AMPLE),
    Setting("tight, tight SSD", memory=TIGHT, folder=TIGHT),
    Setting("0", memory=0),
    # Off is off, with a folder too.
    Setting("0, SSD", memory=0, folder=AMPLE, ideal=0),
)
"""The first learns what a workload wants."""

"""Sample pictures and jobs for the demo, with the answers that the bundled model gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class SampleJob:
    """One demo job; `expect` is the right answer, or None where the job is meant to fail."""

    name: str
    prompt: str
    images: tuple[Path, ...]
    expect: str | None


def sample_jobs() -> list[SampleJob]:
    """Return the demo jobs in order, with the pictures as absolute paths."""
    entries = json.loads((_FOLDER / "samples.json").read_text(encoding="utf-8"))
    return [
        SampleJob(
            name=entry["name"],
            prompt=entry["prompt"],
            images=tuple(_FOLDER / name for name in entry["images"]),
            expect=entry["expect"],
        )
        for entry in entries
    ]

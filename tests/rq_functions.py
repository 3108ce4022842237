"""What RQ calls in tests; workers find it by ``--path tests``."""

from __future__ import annotations

import json
from typing import Any


def note(job: Any, connection: Any, *what: Any) -> None:
    """A callback: keep what it was called with, the job's id first."""
    said = [str(part) if isinstance(part, Exception) else repr(part)[:80] for part in what]
    connection.rpush(f"called:{job.id}", json.dumps(said))


def refuse(job: Any, connection: Any, *what: Any) -> None:
    """A callback that raises."""
    raise ValueError(f"refused {job.id}")


def shout(text: str) -> str:
    """A dependent."""
    return text.upper()

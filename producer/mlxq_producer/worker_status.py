"""A worker as its row shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SILENT_SECONDS: Final = 7.0
"""A worker that was not heard for so long has missed a heartbeat: there is one every 3 seconds."""
_WHOLE: Final = frozenset(
    {
        *("rows", "max_rows", "waiting", "pid"),
        *("done", "failed", "tokens", "prompt_tokens", "cached_tokens"),
        *("prefix_hits", "prefix_misses", "prefix_bytes"),
        *("feature_hits", "feature_misses", "feature_bytes", "disk_bytes", "disk_hits"),
    }
)
_REAL: Final = frozenset({"heartbeat", "started", "jobs_per_s", "tokens_per_s"})
_LISTS: Final = frozenset({"names"})
_SWITCHES: Final = frozenset({"vision"})
_INTERNAL: Final = frozenset({"run", "place", "born", "state"})


@dataclass(frozen=True)
class WorkerStatus:
    """A worker: its name, the fields of its row as text, and what these mean ``now``.

    ``now`` is in unix seconds, by the server's clock. ``live``: its row has not run out.
    """

    name: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    now: float = 0.0
    live: bool = True

    @property
    def state(self) -> str:
        """``loading``, ``ready``, ``working``, ``blocked``, ``draining``, ``stopping``; ``silent``
        if it was not heard lately, ``stopped`` if it ended in order, ``gone`` if it did not.
        """
        told = self.fields.get("state", "ready")
        if told == "stopped":
            return told
        if not self.live:
            return "gone"
        age = self.heartbeat_age
        return "silent" if age is not None and age > SILENT_SECONDS else told

    @property
    def serving(self) -> bool:
        """True if it takes jobs, as far as is known."""
        return self.state in ("ready", "working")

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since its last sign of life; None if it gave none."""
        return self._since("heartbeat")

    @property
    def uptime(self) -> float | None:
        """Seconds since it began; None if it does not say."""
        return self._since("started")

    @property
    def names(self) -> tuple[str, ...]:
        """What a job's ``model`` may say; empty if that is not known."""
        value = _read("names", self.fields.get("names", ""))
        return tuple(str(name) for name in value or ())

    @property
    def model(self) -> str:
        """The model, as results name it; while it is loaded, as the worker was told."""
        return self.fields.get("identity") or self.fields.get("model", "")

    def number(self, name: str) -> float:
        """A field as a number; 0 where it is missing or none."""
        try:
            return float(self.fields.get(name, 0))
        except ValueError:
            return 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: numbers as numbers, null where a field says nothing."""
        told = {k: _read(k, v) for k, v in self.fields.items() if k not in _INTERNAL}
        own = {"name": self.name, "state": self.state}
        return {**own, "heartbeat_age": self.heartbeat_age, "uptime": self.uptime, **told}

    def _since(self, name: str) -> float | None:
        moment = self.number(name)
        return max(self.now - moment, 0.0) if moment else None


def _read(name: str, text: str) -> Any:
    try:
        if name in _WHOLE:
            return int(text)
        if name in _REAL:
            return float(text)
        if name in _SWITCHES:
            return {"1": True, "0": False}.get(text)
        if name in _LISTS:
            value = json.loads(text)
            return value if isinstance(value, list) else None
    except ValueError:
        return None
    return text

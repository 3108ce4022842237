"""What a queue must look like, told by plain values: see ``queue_machine``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lua_worker import LuaWorker
from mlxq_schemas.keys import Priority

FAR = 4e9
"""Unix seconds, long after now."""


@dataclass(eq=False)
class Handle:
    """What one worker believes that it holds, for however long."""

    worker: LuaWorker
    name: str
    priority: Priority
    entry: bytes
    epoch: int

    @property
    def place(self) -> tuple[Priority, bytes]:
        return self.priority, self.entry


@dataclass
class Life:
    """What a job's record must say."""

    spec_delayed: bool
    state: str
    prompt: str
    seq: int = 1
    epoch: int = 0
    attempts: int = 0
    deaths: int = 0
    errors: int = 0
    cancel: bool = False
    uncounted: bool = False
    due: float = FAR
    handle: Handle | None = None
    text: list[str] = field(default_factory=list[str])
    ends: list[str] = field(default_factory=list[str])

    @property
    def ended(self) -> bool:
        return self.state not in {"queued", "delayed", "running"}

    def end(self, state: str) -> None:
        self.state = state
        self.ends.append(state)
        self.seq += 1

    def copy(self) -> Life:
        return replace(self, text=list(self.text), ends=list(self.ends))


@dataclass
class Replica:
    """What another server has, which may be behind: its keys, and what the model says of them."""

    keys: dict[bytes, tuple[bytes, int]]
    lives: dict[str, Life]
    past_ends: int

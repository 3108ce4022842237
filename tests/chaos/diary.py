"""What producers write down before and after each step, and what others learn from it.

One JSON line a step; a line that a kill cut in two is not a line. Each names an id and the number
of its life:

- ``try``: it is about to be sent, with its template and what else the job says, in this age;
- ``accepted``: the queue has promised it;
- ``cancel``, ``forget``: it is about to be cancelled, or its dead letter dropped;
- ``read``: its reader got all its events;
- ``gone``: its reader was told that there is no such job, in this age;
- ``story``: what the server held of it, before its record expired or was dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.records import Record


@dataclass
class Life:
    """One job. ``age``: that of the server when it was first sent; ``more``: fields of its own.

    ``asleep``: its time never comes, it can only be cancelled. ``read`` has ``seqs`` and ``text``.
    ``gone`` is the age in which its reader was told that there is no such job.
    """

    job_id: str
    number: int
    template: str
    age: int = 0
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    asleep: bool = False
    after: str = ""
    accepted: bool = False
    cancelled: bool = False
    forgotten: bool = False
    read: dict[str, Any] | None = None
    gone: int | None = None
    stories: list[tuple[int, Record]] = field(default_factory=list[tuple[int, Record]])


class Diary:
    """The one that a producer writes; ``lives`` is what its former processes wrote."""

    def __init__(self, path: Path) -> None:
        known = path.read_bytes() if path.exists() else b""
        self.steps = known.count(b"\n")
        self.lives = Lives.of([path]) if known else Lives()
        self._file = path.open("ab", buffering=0)
        if known and not known.endswith(b"\n"):
            self._file.write(b"\n")

    def write(self, step: str, life: Life, **more: Any) -> None:
        """``step`` is one of those at the head of this file."""
        line = {"step": step, "id": life.job_id, "life": life.number, **more}
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


@dataclass
class Lives:
    """All lives by id and number."""

    found: dict[tuple[str, int], Life] = field(default_factory=dict[tuple[str, int], Life])

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Lives:
        """What the diaries say."""
        lives = cls()
        for line in (line for path in paths for line in path.read_bytes().splitlines()):
            try:
                step = json.loads(line)
            except ValueError:
                continue  # its writer was killed
            lives.take(step)
        return lives

    def __iter__(self) -> Iterator[Life]:
        return iter(self.found.values())

    def add(self, life: Life) -> None:
        self.found[life.job_id, life.number] = life

    def last(self) -> list[Life]:
        """The last life of each id."""
        return list({life.job_id: life for life in self}.values())

    def take(self, step: dict[str, Any]) -> None:
        """One line of a diary."""
        name = step["id"], step["life"]
        if step["step"] == "try":
            fields = {key: step[key] for key in ("template", "age", "more", "asleep", "after")}
            self.found.setdefault(name, Life(*name, **fields))
            return
        life = self.found[name]
        match step["step"]:
            case "accepted":
                life.accepted = True
            case "cancel":
                life.cancelled = True
            case "forget":
                life.forgotten = True
            case "read":
                life.read = {"seqs": step["seqs"], "text": step["text"]}
            case "gone":
                life.gone = step["age"]
            case "story":
                life.stories.append((step["age"], Record.of_text(step["record"])))
            case _:
                raise ValueError(f"not a step of a diary: {step}")

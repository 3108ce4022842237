"""What is done to the workers of a run, one by one."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from chaos.kinds import Kinds
from chaos.links import Links
from chaos.stage import Server, WorkerProcess

MERCY: Final = 2
"""A job that lost so many workers is not made to lose the next: it would rightly be poison."""


@dataclass
class Holdings:
    """Looks into the queue from outside: who holds which jobs, and how often they lost workers."""

    server: Server
    queue: str

    def unlucky(self, worker: str | None = None) -> bool:
        """True if a job in flight (of one worker, or any) must be spared, or nobody can say."""
        try:
            return any(self._deaths(job_id) >= MERCY for job_id in self._held(worker))
        except (redis.RedisError, OSError):
            return True

    def owners(self) -> set[str]:
        """The names of those that hold jobs."""
        return {row["consumer"].decode() for _, row in self._pending(None)}

    def specs(self, worker: str) -> dict[str, bytes | None]:
        """What the jobs of a worker ask for, by id."""
        try:
            return {job_id: self._spec(job_id) for job_id in self._held(worker)}
        except (redis.RedisError, OSError):
            return {}

    def another_life(self, specs: dict[str, bytes | None]) -> bool:
        """True if one of these ids is a running job again that asks for something else."""
        try:
            now = {job_id: self._spec(job_id, "running") for job_id in specs}
        except (redis.RedisError, OSError):
            return False
        return any(spec is not None and spec != specs[job_id] for job_id, spec in now.items())

    def _spec(self, job_id: str, state: str = "") -> bytes | None:
        found: Any = self.server.client.hmget(self._job(job_id), "spec", "state")
        return found[0] if not state or found[1] == state.encode() else None

    def _job(self, job_id: str) -> str:
        return f"mlxq:{{{self.queue}}}:job:{job_id}"

    def _held(self, worker: str | None) -> list[str]:
        found: list[str] = []
        for stream, row in self._pending(worker):
            entry = self.server.client.xrange(stream, row["message_id"], row["message_id"])
            found += [fields[b"id"].decode() for _, fields in entry]
        return found

    def _pending(self, worker: str | None) -> list[tuple[str, dict[str, Any]]]:
        client, found = self.server.client, list[tuple[str, dict[str, Any]]]()
        for priority in ("high", "normal", "low"):
            stream = f"mlxq:{{{self.queue}}}:jobs:{priority}"
            if client.exists(stream) and client.xinfo_groups(stream):
                rows: Any = client.xpending_range(stream, "workers", "-", "+", 1000, worker)
                found += [(stream, row) for row in rows]
        return found

    def _deaths(self, job_id: str) -> int:
        return int(self.server.client.hget(self._job(job_id), "deaths") or 0)


@dataclass
class Slot:
    """The place of one worker: whoever leaves it is followed by a new one.

    ``due`` (monotonic seconds) is when its fate comes; ``frozen`` until then, or until one of the
    ids that it ``held`` (with what they asked for) runs in another life.
    """

    worker: WorkerProcess
    due: float | None = None
    frozen: bool = False
    held: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    draining: bool = False


@dataclass
class Faults:
    """Does the faults and counts them. Each new worker has a fresh name.

    ``longest_wait`` is in seconds: for so long the job of a worker that had ended was nobody's.
    """

    kinds: Kinds
    links: Links
    holdings: Holdings
    folder: Path
    options: list[str]
    lease: float
    counts: Counter[str] = field(default_factory=Counter[str])
    crashes: list[str] = field(default_factory=list[str])
    slots: list[Slot] = field(default_factory=list[Slot])
    longest_wait: float = 0.0
    _died: dict[str, float] = field(default_factory=dict[str, float])

    def staff(self, number: int) -> None:
        """Start workers until there are so many."""
        while len(self.slots) < number:
            self.slots.append(Slot(self._new_worker()))

    def tend(self, *, harm: bool, freeze: bool = False) -> None:
        """Bring each worker's fate if it is due (``freeze``: this one); replace the ended."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.worker.status is not None:
                self._left(slot)
                self._died[slot.worker.name] = now
                slot.worker, slot.due, slot.draining = self._new_worker(), None, False
            elif slot.frozen:
                self._thaw(slot)
            elif slot.due is None and slot.worker.ready:
                slot.due = now + self.kinds.rng("kills").uniform(0.2, 6.0)
            elif harm and not slot.draining and slot.due is not None and now >= slot.due:
                self._strike(slot, freeze=freeze)

    def freeze_holder(self) -> bool:
        """Freeze a worker that has jobs until they run again in another life; False if none has.

        For a FLUSHALL: who is awake then learns of it at its next write, before the ids are back.
        """
        for slot in self.slots:
            busy = slot.worker.status is None and slot.worker.ready
            if not busy or slot.draining or slot.frozen:
                continue
            slot.worker.signal(signal.SIGSTOP)
            time.sleep(0.1)
            spared = self.links.late or self.holdings.unlucky(slot.worker.name)
            slot.held = {} if spared else self.holdings.specs(slot.worker.name)
            if slot.held:
                slot.frozen, slot.due = True, time.monotonic() + self.lease * 5
                self.counts["worker freezes"] += 1
                self.counts["frozen over a flush"] += 1
                return True
            slot.worker.signal(signal.SIGCONT)
        return False

    def _thaw(self, slot: Slot) -> None:
        another = self.holdings.another_life(slot.held)
        if another or slot.due is None or time.monotonic() >= slot.due:
            slot.worker.signal(signal.SIGCONT)
            slot.frozen, slot.due = False, None
            self.counts["woken in another life"] += another

    def watch_takeovers(self) -> None:
        """See how long jobs of workers that have ended wait for others."""
        try:
            owners = self.holdings.owners()
        except (redis.RedisError, OSError):
            return
        now = time.monotonic()
        self._died = {name: since for name, since in self._died.items() if name in owners}
        self.longest_wait = max([self.longest_wait, *(now - t for t in self._died.values())])

    def stop(self) -> None:
        """End all workers in order; frozen ones wake first."""
        for slot in self.slots:
            if slot.worker.status is None:
                slot.draining = True
                slot.worker.signal(signal.SIGCONT)
                slot.worker.signal(signal.SIGTERM)
        for slot in self.slots:
            slot.worker.wait()
            self._left(slot)

    def close(self) -> None:
        for slot in self.slots:
            slot.worker.close()

    def _new_worker(self) -> WorkerProcess:
        self.counts["workers"] += 1
        number = self.counts["workers"]
        shift = self.kinds.shift(number, "workers")
        self.counts["workers ahead"] += shift > 0
        self.counts["workers behind"] += shift < 0
        return WorkerProcess(f"w{number}", self.options, self.folder, shift)

    def _strike(self, slot: Slot, *, freeze: bool) -> None:
        """Stop the worker first, so that what it holds can be looked at in peace."""
        rng = self.kinds.rng("kills")
        drawn = rng.choices(("kills", "freezes", "drains"), (16, 3, 2))[0]
        fate = "freezes" if freeze else drawn
        slot.due = time.monotonic() + 0.5
        if fate not in self.kinds:
            return
        slot.worker.signal(signal.SIGSTOP)
        time.sleep(0.1)  # what it has sent arrives meanwhile
        if self.links.late or self.holdings.unlucky(slot.worker.name):
            slot.worker.signal(signal.SIGCONT)
        elif fate == "kills":
            slot.worker.signal(signal.SIGKILL)
            slot.worker.wait()
            self.counts["worker kills"] += 1
        elif fate == "freezes":
            # Some for so long that their jobs can end elsewhere, expire, and be used again.
            slot.frozen, slot.held = True, self.holdings.specs(slot.worker.name)
            slot.due = time.monotonic() + self.lease * rng.choice((1.5, 2.0, 3.0, 5.0))
            self.counts["worker freezes"] += 1
        else:
            slot.worker.signal(signal.SIGCONT)
            slot.worker.signal(signal.SIGTERM)
            slot.draining = True
            self.counts["worker drains"] += 1

    def _left(self, slot: Slot) -> None:
        """Why a worker ended: by our hand, in order, or by a fault of its own."""
        status = slot.worker.status
        if status == -signal.SIGKILL or (status == 0 and slot.draining):
            return
        if status == 4 and not slot.worker.ready:  # no server when it looked for one
            self.counts["workers without a server"] += 1
            return
        self.counts["worker crashes"] += 1
        self.crashes.append(f"{slot.worker.name} ended with {status}: {slot.worker.log[-2000:]}")

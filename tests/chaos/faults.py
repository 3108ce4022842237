"""What is done to a run: to its workers one by one, to its server, and to its connections."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from chaos.stage import Server, WorkerProcess
from tcp_proxy import TcpProxy

LEASE: Final = 3.0
"""Seconds."""
MARKS: Final = ("EVALSHA", "XREADGROUP", ":result:", ":events:", "XAUTOCLAIM", "HMGET", "PUBLISH")
"""A request with one of these in it is the next to lose its reply, or to be late."""
MERCY: Final = 2
"""A job that lost so many workers is not made to lose the next: it would rightly be poison."""


@dataclass
class Holdings:
    """Looks into the queue from outside: which worker holds jobs that have lost workers before."""

    server: Server
    queue: str

    def unlucky(self, worker: str | None = None) -> bool:
        """True if a job in flight (of one worker, or any) must be spared, or nobody can say."""
        try:
            return any(self._deaths(job_id) >= MERCY for job_id in self._held(worker))
        except (redis.RedisError, OSError):
            return True

    def _held(self, worker: str | None) -> list[str]:
        client, found = self.server.client, list[str]()
        for priority in ("high", "normal", "low"):
            stream = f"mlxq:{{{self.queue}}}:jobs:{priority}"
            if not client.exists(stream):
                continue
            rows: Any = client.xpending_range(stream, "workers", "-", "+", 1000, worker)
            for row in rows:
                entry = client.xrange(stream, row["message_id"], row["message_id"])
                found += [fields[b"id"].decode() for _, fields in entry]
        return found

    def _deaths(self, job_id: str) -> int:
        return int(self.server.client.hget(f"mlxq:{{{self.queue}}}:job:{job_id}", "deaths") or 0)


@dataclass
class Slot:
    """The place of one worker: whoever leaves it is followed by a new one.

    ``due`` (monotonic seconds) is when its fate comes; ``frozen`` until then.
    """

    worker: WorkerProcess
    due: float | None = None
    frozen: bool = False
    draining: bool = False


@dataclass
class Faults:
    """Does the faults and counts them. ``start`` makes a new worker of a fresh name."""

    rng: random.Random
    server: Server
    proxies: list[TcpProxy]
    holdings: Holdings
    folder: Path
    options: list[str]
    counts: Counter[str] = field(default_factory=Counter[str])
    crashes: list[str] = field(default_factory=list[str])
    slots: list[Slot] = field(default_factory=list[Slot])

    def staff(self, number: int) -> None:
        """Start workers until there are so many."""
        while len(self.slots) < number:
            self.slots.append(Slot(self._new_worker()))

    def tend(self, *, harm: bool) -> None:
        """Bring each worker's fate if it is due; replace those that have ended."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.worker.status is not None:
                self._left(slot)
                slot.worker, slot.due, slot.draining = self._new_worker(), None, False
            elif slot.frozen and slot.due is not None and now >= slot.due:
                slot.worker.signal(signal.SIGCONT)
                slot.frozen, slot.due = False, None
            elif slot.due is None and slot.worker.ready:
                slot.due = now + self.rng.uniform(0.2, 6.0)
            elif harm and not slot.draining and slot.due is not None and now >= slot.due:
                self._strike(slot)

    def restart_server(self) -> None:
        """End the server, in order or not, and start it again after a moment."""
        if self.holdings.unlucky():
            return
        rough = self.rng.random() < 0.5
        self.server.stop(signal.SIGKILL if rough else signal.SIGTERM)
        time.sleep(self.rng.uniform(0.0, 0.8))
        self.server.start()
        self.counts["server kills" if rough else "server restarts"] += 1

    def disturb(self) -> None:
        """Lose a reply, hold one up, or cut all connections of one side."""
        proxy = self.rng.choice(self.proxies)
        match self.rng.choice(("swallow", "swallow", "swallow", "delay", "cut")):
            case "swallow":
                proxy.swallow(self.rng.choice(MARKS))
            case "delay":
                proxy.delay(self.rng.choice(MARKS), self.rng.uniform(0.1, 1.0))
            case _:
                self.counts["cuts"] += 1
                self.counts["connections cut"] += proxy.cut()

    @property
    def broken_off(self) -> int:
        """Replies swallowed and cuts so far."""
        return self.counts["cuts"] + sum(proxy.swallowed for proxy in set(self.proxies))

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
        return WorkerProcess(f"w{self.counts['workers']}", self.options, self.folder)

    def _strike(self, slot: Slot) -> None:
        """Stop the worker first, so that what it holds can be looked at in peace."""
        slot.worker.signal(signal.SIGSTOP)
        time.sleep(0.1)  # what it has sent arrives meanwhile
        fate = self.rng.choices(("kill", "freeze", "drain"), (8, 1, 1))[0]
        late = any(proxy.delaying for proxy in self.proxies)
        if late or self.holdings.unlucky(slot.worker.name):
            slot.worker.signal(signal.SIGCONT)
            slot.due = time.monotonic() + 0.5
        elif fate == "kill":
            slot.worker.signal(signal.SIGKILL)
            slot.worker.wait()
            self.counts["worker kills"] += 1
        elif fate == "freeze":
            slot.frozen, slot.due = True, time.monotonic() + LEASE * self.rng.uniform(1.5, 3)
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

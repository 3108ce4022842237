"""Jobs in flight: the state of each one in this worker, from read to settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from mlxq_schemas import Job, TokenLogprob, Usage
from mlxq_schemas.clock import ServerClock
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.resume import Prior


class Stage(IntEnum):
    """Where a job is; it only moves forward.

    READ from the stream, PREPARING (claimed), RUNNING (the engine has it), ENDING (its terminal
    event is on its way), GONE (settled, lost or handed back: whatever comes for it is ignored).
    """

    READ = 0
    PREPARING = 1
    RUNNING = 2
    ENDING = 3
    GONE = 4


class Stop(Enum):
    """Why a job is to end before it has its text."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    TIMEOUT = "timeout"


@dataclass(eq=False)
class Flight:
    """One job in flight. Between two stages only one thread works on it.

    ``text`` holds all that was generated, by earlier attempts too, ``generated`` counts its tokens;
    ``unsent_text``, ``unsent_ids`` and ``unsent_logprobs`` are what no token event has carried
    yet. ``opened``: the job has been read, and ``prior``, what earlier attempts published.
    ``started``: its ``started`` event is out; ``began`` (monotonic seconds) is when. ``stop``: it
    is to end, and the engine or whoever prepares it will see to it. ``cancels``: the lives of its
    id whose end was asked for. ``queued`` and ``preparing`` are seconds.
    """

    entry: Entry
    stage: Stage = Stage.READ
    stop: Stop | None = None
    cancels: set[str] = field(default_factory=set[str])
    opened: bool = False
    prior: Prior | None = None
    started: bool = False
    began: float = 0.0
    claim: Claim | None = None
    job: Job | None = None
    media: tuple[str, ...] = ()
    text: list[str] = field(default_factory=list[str])
    generated: int = 0
    prompt_tokens: int = 0
    images: int = 0
    unsent_text: list[str] = field(default_factory=list[str])
    unsent_ids: list[int] = field(default_factory=list[int])
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    queued: float = 0.0
    preparing: float = 0.0

    @property
    def usage(self) -> Usage:
        """What is known of it here, for an end of which the engine says nothing."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.generated,
            images=self.images,
        )

    def take_unsent(self) -> tuple[str, list[int], list[TokenLogprob]]:
        """Text, ids and log probabilities that no event has carried yet; they count as sent now."""
        unsent = "".join(self.unsent_text), self.unsent_ids, self.unsent_logprobs
        self.unsent_text, self.unsent_ids, self.unsent_logprobs = [], [], []
        return unsent

    @property
    def owned(self) -> Claim:
        """The claim; only after the stage READ."""
        if self.claim is None:
            raise RuntimeError(f"entry {self.entry.id} is not claimed yet")
        return self.claim

    def limit(self, now: float) -> Stop | None:
        """The limit of its own that the job has passed; ``now`` is in unix seconds."""
        job = self.job
        if job is not None and job.deadline is not None and now >= job.deadline:
            return Stop.EXPIRED
        if job is not None and job.timeout is not None and self.started:
            return Stop.TIMEOUT if time.monotonic() >= self.began + job.timeout else None
        return None


class Flights:
    """The registry. Every method may be called from any thread."""

    def __init__(
        self, on_room: Callable[[], None] = lambda: None, clock: ServerClock | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._by_entry: dict[tuple[str, str], Flight] = {}
        self._by_request: dict[str, Flight] = {}
        self.on_room = on_room
        self.clock = clock or ServerClock()

    def reserve(self, entry: Entry) -> Flight | None:
        """A flight for an entry that was read; None if this worker has it already."""
        with self._lock:
            if entry.key in self._by_entry:
                return None
            flight = self._by_entry[entry.key] = Flight(entry)
            return flight

    def claimed(self, flight: Flight, claim: Claim) -> None:
        """The server gave us the job."""
        with self._lock:
            flight.claim = claim
            if claim.cancelled or claim.life in flight.cancels:
                flight.stop = Stop.CANCELLED
            flight.queued = max(0.0, self.clock.now() - claim.submitted)
            flight.stage = Stage.PREPARING
            self._by_request[claim.request_id] = flight

    def advance(self, flight: Flight, stage: Stage) -> bool:
        """Move a flight forward; False if it is there already, or further."""
        with self._lock:
            if flight.stage >= stage:
                return False
            flight.stage = stage
            if stage is Stage.GONE:
                self._remove(flight)
        if stage >= Stage.ENDING:
            self.on_room()
        return True

    def by_request(self, request_id: str) -> Flight | None:
        """The flight of a request in the engine; None if it is gone."""
        with self._lock:
            return self._by_request.get(request_id)

    def by_entry(self, entry: Entry) -> Flight | None:
        with self._lock:
            return self._by_entry.get(entry.key)

    def cancel(self, job_id: str, life: str) -> list[Flight]:
        """Mark one life of a job for its end; its claimed flights."""
        with self._lock:
            named = [f for f in self._by_entry.values() if f.entry.job_id == job_id]
            for flight in named:
                flight.cancels.add(life)  # its claim may be on its way
            found = [f for f in named if f.claim is not None and f.claim.life == life]
            for flight in found:
                flight.stop = Stop.CANCELLED
        return found

    def entries(self) -> list[Entry]:
        """Entries whose leases are to be renewed."""
        with self._lock:
            return [flight.entry for flight in self._by_entry.values()]

    def lives(self) -> list[tuple[str, str]]:
        """Ids and lives of the claimed jobs."""
        with self._lock:
            claims = (flight.claim for flight in self._by_entry.values())
            return [(claim.job_id, claim.life) for claim in claims if claim is not None]

    def unfinished(self, stage: Stage = Stage.ENDING) -> list[Flight]:
        """Claimed flights that have not come as far as ``stage``."""
        with self._lock:
            return [f for f in self._by_entry.values() if Stage.READ < f.stage < stage]

    def busy(self) -> int:
        """How many need a row, now or soon."""
        with self._lock:
            return sum(flight.stage < Stage.ENDING for flight in self._by_entry.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_entry)

    def wait_empty(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until nothing is in flight."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._by_entry, timeout)

    def _remove(self, flight: Flight) -> None:
        self._by_entry.pop(flight.entry.key, None)
        request_id = flight.claim.request_id if flight.claim is not None else ""
        if self._by_request.get(request_id) is flight:
            del self._by_request[request_id]
        self._changed.notify_all()

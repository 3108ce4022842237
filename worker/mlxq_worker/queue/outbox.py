"""Events of one claim on their way to the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from mlxq_schemas import GROUP, Event, Failed, Keys, Result, Terminal, Token
from mlxq_schemas.wire import encode_event
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.link import Command, run_script

ENDED = {b"finished", b"failed", b"cancelled", b"expired"}


@dataclass(frozen=True)
class Ending:
    """How a claim ends: its terminal event and the result to store."""

    event: Terminal
    result: Result


@dataclass(frozen=True)
class Retention:
    """Seconds that ended jobs and dead letters are kept."""

    result: int
    dead: int


class Standing(Enum):
    """What the server knows of a claim."""

    OURS = "ours"
    SETTLED = "settled"
    LOST = "lost"
    REWOUND = "rewound"


@dataclass
class Outbox:
    """Unsent events, and those whose reply is awaited.

    ``seq`` is the number of the first of them. ``generation``: the connection on which the
    server last confirmed ``seq`` (None: nothing was published yet). ``unsure``: a write was
    tried and not confirmed. ``closing`` is the ending that this write brings. Not thread-safe.
    """

    claim: Claim
    waiting: list[Event] = field(default_factory=list[Event])
    sent: list[Event] = field(default_factory=list[Event])
    ending: Ending | None = None
    closing: Ending | None = None
    generation: int | None = None
    unsure: bool = False
    seq: int = 0

    def __post_init__(self) -> None:
        self.seq = self.claim.seq

    def add(self, event: Event) -> None:
        """Queue an event; text joins the text that waits already."""
        last = self.waiting[-1] if self.waiting else None
        if isinstance(event, Token) and isinstance(last, Token):
            self.waiting[-1] = _joined(last, event)
        else:
            self.waiting.append(event)

    def take(self) -> bool:
        """Move what waits to what is sent next; False if there is nothing to send."""
        self.sent += self.waiting
        self.waiting = []
        self.closing = self.ending
        self.unsure = bool(self.sent or self.closing)
        return self.unsure

    def confirm(self, generation: int) -> None:
        """The server has what was sent."""
        self.seq += len(self.sent)
        self.sent = []
        self.unsure = False
        self.generation = generation

    def doubtful(self, generation: int) -> bool:
        """True if the server must be asked before the next write on this connection."""
        return self.unsure or self.generation not in (None, generation)

    def judge(self, known_fields: Sequence[bytes | None], generation: int) -> Standing:
        """Compare with ``epoch``, ``state`` and ``seq`` of the job's hash.

        Forgets what the server turns out to have.
        """
        epoch, state, seq = known_fields
        if epoch is None or int(epoch) != self.claim.epoch:
            return Standing.LOST
        if state in ENDED:
            return Standing.SETTLED if self.closing else Standing.LOST
        known = int(seq or 0)
        if known == self.seq + len(self.sent):
            self.confirm(generation)
        elif known == self.seq:
            self.generation = generation
        else:
            return Standing.REWOUND
        return Standing.OURS

    def give_up(self, code: str, message: str) -> None:
        """End as failed, without the events that could not be encoded."""
        claim = self.claim
        self.sent = []
        self.ending = self.closing = Ending(
            Failed(job=claim.job_id, attempt=claim.attempt, code=code, message=message),
            Result(
                job=claim.job_id, attempt=claim.attempt, type="failed", code=code, message=message
            ),
        )

    def command(self, keys: Keys, keep: Retention, now: float) -> Command:
        """The write of what was taken."""
        events = [encode_event(event) for event in self.sent]
        if self.closing is None:
            return self._append(keys, events)
        return self._finish(keys, keep, now, self.closing, events)

    def _append(self, keys: Keys, events: list[bytes]) -> Command:
        job_id = self.claim.job_id
        return run_script(
            "append",
            [keys.job(job_id), keys.events(job_id)],
            [self.claim.epoch, keys.tokens(job_id), *events],
        )

    def _finish(
        self, keys: Keys, keep: Retention, now: float, ending: Ending, events: list[bytes]
    ) -> Command:
        job_id, entry, event = self.claim.job_id, self.claim.entry, ending.event
        why = (event.code, event.message) if isinstance(event, Failed) else ("", "")
        return run_script(
            "finish",
            [
                *(keys.job(job_id), keys.events(job_id), keys.result(job_id)),
                *(keys.results, keys.dead, entry.stream),
            ],
            [
                *(self.claim.epoch, job_id, event.type, encode_event(event)),
                *(encode_event(ending.result), keys.tokens(job_id), now, keep.result),
                *(GROUP, entry.id, *why, keep.dead, *events),
            ],
        )


def _joined(first: Token, second: Token) -> Token:
    logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return Token(
        job=second.job,
        attempt=second.attempt,
        t=second.t,
        text=first.text + second.text,
        ids=first.ids + second.ids,
        logprobs=logprobs or None,
    )

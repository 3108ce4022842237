"""Events of one claim on their way to the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from mlxq_schemas import (
    GROUP,
    Event,
    Failed,
    Keys,
    Result,
    Retrying,
    Terminal,
    Token,
    TokenLogprob,
)
from mlxq_schemas.wire import encode_event
from mlxq_worker.queue.claim import Claim, Retention
from mlxq_worker.queue.link import Command, run_script


@dataclass(frozen=True)
class Ending:
    """How a claim ends: its terminal event and the result to store."""

    event: Terminal
    result: Result


@dataclass(frozen=True)
class PutOff:
    """How a claim ends whose job is tried again at ``due`` (unix seconds).

    ``errors`` is 1 if an error is the reason, 0 if the job's time has only not come.
    """

    event: Retrying
    due: float
    errors: int = 1


Closing = Ending | PutOff


class Standing(Enum):
    """What the server knows of a claim."""

    OURS = "ours"
    SETTLED = "settled"
    LOST = "lost"
    REWOUND = "rewound"


@dataclass
class Text:
    """Text that no event carries yet, in pieces, with the ids and log probabilities behind it."""

    pieces: list[str] = field(default_factory=list[str])
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    chars: int = 0

    def add(self, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        self.pieces.append(text)
        self.ids += ids
        self.logprobs += logprobs
        self.chars += len(text)


@dataclass
class Outbox:
    """Unsent events, and those whose reply is awaited.

    ``text`` comes after the events that wait. ``seq`` is the number of the first event.
    ``generation``: the connection on which the server last confirmed ``seq`` (None: nothing was
    published yet). ``unsure``: a write was tried and not confirmed. ``closing`` is the ending
    that this write brings. Not thread-safe.
    """

    claim: Claim
    waiting: list[Event] = field(default_factory=list[Event])
    text: Text = field(default_factory=Text)
    sent: list[Event] = field(default_factory=list[Event])
    ending: Closing | None = None
    closing: Closing | None = None
    generation: int | None = None
    unsure: bool = False
    seq: int = 0

    def __post_init__(self) -> None:
        self.seq = self.claim.seq

    def add(self, event: Event) -> None:
        """Queue an event, after the text that waits."""
        self._close_text()
        self.waiting.append(event)

    def take(self) -> bool:
        """Move what waits to what is sent next; False if there is nothing to send."""
        self._close_text()
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
        if epoch != b"%d" % self.claim.epoch:  # unique over time: no other life of this id has it
            return Standing.LOST
        if state != b"running":
            return Standing.SETTLED if self.closing else Standing.LOST
        if seq == b"%d" % (self.seq + len(self.sent)):
            self.confirm(generation)
        elif (seq or b"0") == b"%d" % self.seq:
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

    def command(self, keys: Keys, keep: Retention) -> Command:
        """The write of what was taken."""
        events = [encode_event(event) for event in self.sent]
        match self.closing:
            case None:
                return self._append(keys, events)
            case Ending() as ending:
                return self._finish(keys, keep, ending, events)
            case PutOff() as put_off:
                return self._retry(keys, put_off, events)

    def _close_text(self) -> None:
        """Text that came token by token becomes one event."""
        text = self.text
        if not text.pieces:
            return
        self.text = Text()
        event = Token(
            job=self.claim.job_id,
            attempt=self.claim.attempt,
            text="".join(text.pieces),
            ids=text.ids,
            logprobs=text.logprobs or None,
        )
        self.waiting.append(event)

    def _append(self, keys: Keys, events: list[bytes]) -> Command:
        job_id = self.claim.job_id
        return run_script(
            "append",
            [keys.job(job_id), keys.events(job_id)],
            [self.claim.epoch, keys.tokens(job_id), *events],
        )

    def _retry(self, keys: Keys, put_off: PutOff, events: list[bytes]) -> Command:
        job_id, entry = self.claim.job_id, self.claim.entry
        return run_script(
            "retry",
            [keys.job(job_id), keys.events(job_id), entry.stream, keys.delayed],
            [
                *(self.claim.epoch, job_id, keys.tokens(job_id), encode_event(put_off.event)),
                *(put_off.due, GROUP, entry.id, put_off.errors, *events),
            ],
        )

    def _finish(self, keys: Keys, keep: Retention, ending: Ending, events: list[bytes]) -> Command:
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
                *(encode_event(ending.result), keys.tokens(job_id), keep.result),
                *(GROUP, entry.id, *why, keep.dead, *events),
            ],
        )

"""Events of a job, as they travel, and the stored result.

``seq`` counts from 0 without a gap for the life of the job, over all attempts; the server
allots it when the event is appended, so an event that was not yet sent has ``seq`` -1.
The text of all ``token`` events since the last ``retrying`` with ``restart`` is exactly
``finished.text``.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from mlxq_schemas.media import Model

UNSENT = -1


class Usage(Model):
    """Counts of one job: tokens, and images seen."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0


class Timing(Model):
    """Seconds spent in each stage."""

    queued: float = 0.0
    prepare: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Provenance(Model):
    """What made the text: model identity, worker, attempt, media sha256s, sampler settings."""

    model: str
    worker: str
    attempt: int
    media: list[str] = Field(default_factory=list)
    sampler: dict[str, Any] = Field(default_factory=dict)


class TokenLogprob(Model):
    """Log probability (nats) of one generated token, and of the likeliest alternatives.

    Of the model's own distribution: before bias, penalties, temperature and filters.
    """

    id: int
    logprob: float
    top: dict[int, float] = Field(default_factory=dict)


class BaseEvent(Model):
    v: Literal[1] = 1
    job: str
    attempt: int = 0
    seq: int = UNSENT
    t: float = Field(default_factory=time.time)


class Queued(BaseEvent):
    type: Literal["queued"] = "queued"


class Started(BaseEvent):
    """An attempt begins; ``model`` is the identity of what makes the text that follows."""

    type: Literal["started"] = "started"
    worker: str = ""
    model: str = ""


class Progress(BaseEvent):
    """Prefill progress in prompt tokens."""

    type: Literal["progress"] = "progress"
    done: int
    total: int


class Token(BaseEvent):
    """New text: whole characters only, never part of a stop string.

    ``ids`` are the tokens generated since the last such event, those without text (as at the end
    of the sequence) included: ``text`` may be "".
    """

    type: Literal["token"] = "token"
    text: str
    ids: list[int] = Field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None


class Retrying(BaseEvent):
    """The job is tried again, after ``delay`` seconds; ``restart``: its text begins anew."""

    type: Literal["retrying"] = "retrying"
    code: str
    message: str
    delay: float = 0.0
    restart: bool = False


FinishReason = Literal["stop", "length"]


class Finished(BaseEvent):
    type: Literal["finished"] = "finished"
    reason: FinishReason
    text: str
    usage: Usage = Field(default_factory=Usage)


class Failed(BaseEvent):
    type: Literal["failed"] = "failed"
    code: str
    message: str


class Cancelled(BaseEvent):
    type: Literal["cancelled"] = "cancelled"


class ExpiredEvent(BaseEvent):
    """The deadline passed before the job ended."""

    type: Literal["expired"] = "expired"


Terminal = Finished | Failed | Cancelled | ExpiredEvent
Event = Annotated[
    Queued | Started | Progress | Token | Retrying | Finished | Failed | Cancelled | ExpiredEvent,
    Field(discriminator="type"),
]
TERMINAL_TYPES = frozenset({"finished", "failed", "cancelled", "expired"})

event_adapter: TypeAdapter[Event] = TypeAdapter(Event)


def is_terminal(event: BaseEvent) -> bool:
    """True for the one event that ends a job."""
    return getattr(event, "type", None) in TERMINAL_TYPES


class Result(BaseEvent):
    """The stored result: the terminal event's fields, with timing and provenance.

    ``text`` is the generated text of a finished job, or what a failed, cancelled or expired job
    had generated until then.
    """

    type: Literal["finished", "failed", "cancelled", "expired"]
    reason: FinishReason | None = None
    text: str = ""
    code: str | None = None
    message: str | None = None
    usage: Usage = Field(default_factory=Usage)
    timing: Timing = Field(default_factory=Timing)
    provenance: Provenance | None = None

    @property
    def ok(self) -> bool:
        """True if the job finished."""
        return self.type == "finished"

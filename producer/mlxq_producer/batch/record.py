"""The batch object, in OpenAI's form: what a batch is and how far it has come."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, PrivateAttr

from mlxq_producer.batch.lines import ENDPOINTS, Endpoint, Request, read_lines
from mlxq_schemas.clock import ServerClock
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import whole

Status = Literal["validating", "in_progress", "cancelling", "completed", "cancelled", "expired"]
ENDED: Final = frozenset({"completed", "cancelled", "expired"})
KEEP_SECONDS: Final = 7 * 86400
"""For how long after its completion window the server keeps what it knows of a batch."""
_HEAD_BYTES: Final = 1024 * 1024


class RequestCounts(BaseModel):
    """Lines by what became of them."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def open(self) -> int:
        """Lines without a row yet."""
        return self.total - self.completed - self.failed


class Batch(BaseModel):
    """A batch; the times are unix seconds on the server. ``metadata`` holds what binds it to its
    input.
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    cancelling_at: int | None = None
    completed_at: int | None = None
    cancelled_at: int | None = None
    expired_at: int | None = None
    request_counts: RequestCounts = Field(default_factory=RequestCounts)
    metadata: dict[str, str] = Field(default_factory=dict)
    _clock: ServerClock = PrivateAttr(default_factory=ServerClock)

    @property
    def clock(self) -> ServerClock:
        """What the batch knows of the server's time."""
        return self._clock

    @property
    def round(self) -> int:
        """How often lines were given up and begun anew."""
        return int(self.metadata.get("round", "0"))

    def next_round(self) -> None:
        """Give up the jobs of all lines that have no row: they will get others."""
        self.metadata["round"] = str(self.round + 1)

    @property
    def ended(self) -> bool:
        """True once every line has its row."""
        return self.status in ENDED

    def move(self, status: Status) -> None:
        """Enter a state, and note when."""
        if status != self.status:
            self.status = status
            setattr(self, f"{status}_at", int(self.clock.now()))

    def reopen(self) -> None:
        """Begin again with a batch that had ended; one whose window is over gets another."""
        self.move("in_progress")
        self.completed_at = self.cancelling_at = self.cancelled_at = self.expired_at = None
        now = int(self.clock.now())
        if now >= self.expires_at:
            self.expires_at = now + self.expires_at - self.created_at

    @property
    def ttl(self) -> int:
        """Seconds for which the server keeps the batch from now on."""
        return max(self.expires_at - int(self.clock.now()), 0) + KEEP_SECONDS


def new_batch(
    source: Path, completion_window: float, model: str | None, priority: str, now: float
) -> Batch:
    """A batch for the lines of ``source``, to be done within so many seconds from ``now``."""
    if completion_window <= 0:
        raise ConfigError(f"completion window {completion_window:g} s: give more than zero")
    batch = Batch(
        id=f"batch_{uuid.uuid4().hex[:24]}",
        endpoint=_endpoint(source),
        input_file_id=whole(str(source)),
        completion_window=_window(completion_window),
        created_at=int(now),
        expires_at=int(now) + max(int(completion_window), 1),
        metadata=_terms(source, model, priority),
    )
    batch.clock.learn(now)
    return batch


def check_terms(batch: Batch, source: Path, model: str | None, priority: str) -> None:
    """Refuse to go on with a batch on other terms: its jobs would be others, under the same ids."""
    _check_input(batch, source)
    begun, asked = batch.metadata, _terms(source, model, priority)
    differ = [n for n in ("model", "priority") if begun.get(n) != asked.get(n)]
    if differ:
        was, now = (" ".join(_option(n, terms.get(n)) for n in differ) for terms in (begun, asked))
        raise ConfigError(
            f"{batch.id} began {was}, and is to go on {now}: give the same, or --retry-failed, "
            "which does failed lines again in the new way"
        )


def retry(batch: Batch, source: Path, model: str | None, priority: str) -> None:
    """Take up a batch again, on these terms, for the lines that have no response."""
    _check_input(batch, source)
    batch.next_round()
    kept = {"round": batch.metadata["round"]}
    batch.metadata = {**_terms(source, model, priority), **kept}
    batch.reopen()


def _check_input(batch: Batch, source: Path) -> None:
    if batch.metadata.get("input") != fingerprint(source):
        raise ConfigError(
            f"{batch.id} is a batch of another input, {batch.input_file_id}: begin a new one"
        )


def check_unchanged(batch: Batch, source: Path) -> None:
    """Refuse to call a batch done whose input became another one while it was read."""
    if batch.metadata.get("input") != fingerprint(source):
        raise ConfigError(
            f"{source} changed while {batch.id} was at it: put it back as it was and go on, or "
            "begin anew with another output"
        )


def _terms(source: Path, model: str | None, priority: str) -> dict[str, str]:
    named = {"model": model} if model is not None else {}
    return {"input": fingerprint(source), "priority": priority, **named}


def _option(name: str, value: str | None) -> str:
    return f"without --{name}" if value is None else f"with --{name} {value}"


def fingerprint(source: Path) -> str:
    """What tells one input file from another: its size and the hash of its beginning.

    Raises :class:`ConfigError` if it cannot be read.
    """
    try:
        with source.open("rb") as file:
            head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
        return f"{source.stat().st_size}-{head[:32]}"
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error


def _endpoint(source: Path) -> Endpoint:
    """The endpoint of the first good line."""
    for line in read_lines(source):
        if isinstance(line, Request):
            return line.url
    return ENDPOINTS[0]


def _window(seconds: float) -> str:
    hours = seconds / 3600
    return f"{int(hours)}h" if hours >= 1 and hours.is_integer() else f"{seconds:g}s"

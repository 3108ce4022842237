"""What the demo's jobs came to: rows that grow by events, and a summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Protocol

from mlxq_schemas import (
    Event,
    Failed,
    Finished,
    Queued,
    Retrying,
    Started,
    Token,
    is_terminal,
    new_id,
)


class Sample(Protocol):
    """What the demo asks for; ``expect`` None means that the job must fail."""

    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def images(self) -> Any: ...
    @property
    def expect(self) -> str | None: ...


@dataclass
class Row:
    """One job of the demo; times are unix seconds, 0 until they come."""

    name: str
    prompt: str
    images: list[str]
    expect: str | None
    id: str = field(default_factory=new_id)
    state: str = "waiting"
    text: str = ""
    code: str | None = None
    message: str | None = None
    tokens: int = 0
    queued: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0

    @classmethod
    def of(cls, sample: Sample) -> Row:
        """A row for a sample, with a fresh job id."""
        images = [str(image) for image in sample.images]
        return cls(sample.name, sample.prompt, images, sample.expect)

    def job(self) -> dict[str, Any]:
        """The job's fields, as the submit command reads them."""
        return {"id": self.id, "prompt": self.prompt, "images": self.images}

    def apply(self, event: Event) -> None:
        """Take in one event of this job."""
        match event:
            case Queued():
                self.queued, self.state = event.t, "queued"
            case Started():
                self.started, self.state = self.started or event.t, "running"
            case Token():
                self.first_token = self.first_token or event.t
                self.text += event.text
            case Retrying() if event.restart:
                self.text = ""
            case Finished():
                self.text, self.tokens = event.text, event.usage.completion_tokens
            case Failed():
                self.code, self.message = event.code, event.message
            case _:
                pass
        if is_terminal(event):
            self.ended, self.state = event.t, event.type

    @property
    def right(self) -> bool:
        """True if the job ended as it should: with the expected text, or failed."""
        if self.expect is None:
            return self.state == "failed"
        return self.state == "finished" and self.text.strip() == self.expect.strip()

    @property
    def ttft(self) -> float | None:
        """Seconds from the queue to the first token."""
        return self.first_token - self.queued if self.first_token else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "prompt": self.prompt,
            "images": self.images,
            "text": self.text,
            "expect": self.expect,
            "right": self.right,
            "type": self.state,
            "code": self.code,
            "message": self.message,
            "ttft_s": None if self.ttft is None else round(self.ttft, 4),
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class Summary:
    """The demo in numbers; times in seconds, None where there was no token.

    ``right`` of ``expected`` captions are right; ``failed`` of ``expected_failures`` jobs failed
    (any other that failed is a wrong caption).
    """

    jobs: int
    expected: int
    right: int
    expected_failures: int
    failed: int
    tokens: int
    seconds: float
    tokens_per_s: float | None
    median_ttft_s: float | None
    ok: bool
    reason: str | None
    """Why ``ok`` is False."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def summarise(rows: list[Row]) -> Summary:
    """Count what the rows hold."""
    wrong = [row for row in rows if not row.right]
    started = [row.started for row in rows if row.started]
    ended = [row.ended for row in rows if row.ended]
    seconds = max(ended) - min(started) if started and ended else 0.0
    tokens = sum(row.tokens for row in rows)
    waits = [row.ttft for row in rows if row.ttft is not None]
    return Summary(
        jobs=len(rows),
        expected=sum(row.expect is not None for row in rows),
        right=sum(row.right for row in rows if row.expect is not None),
        expected_failures=sum(row.expect is None for row in rows),
        failed=sum(row.state == "failed" for row in rows),
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_s=round(tokens / seconds, 1) if seconds > 0 else None,
        median_ttft_s=round(median(waits), 4) if waits else None,
        ok=not wrong,
        reason="; ".join(_wrong(row) for row in wrong) or None,
    )


def _wrong(row: Row) -> str:
    if row.expect is None:
        return f"{row.name}: should have failed, but {row.state} with {row.text!r}"
    if row.state == "finished":
        return f"{row.name}: expected {row.expect!r}, got {row.text!r}"
    return f"{row.name}: {row.state} ({row.code}: {row.message})"

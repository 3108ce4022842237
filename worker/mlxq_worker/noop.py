"""A backend without a model: it answers with the prompt's own text, one character a step.

With ``--model noop:`` the queue can be tested and measured by itself, with real processes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxq_schemas import FinishReason, Job, TextPart, Usage
from mlxq_schemas.errors import ConfigError
from mlxq_worker.backend import Backend, BlobReader
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.request import Request, Response, Times

PREFIX = "noop:"
NAME = "noop"


@dataclass
class _Row:
    uid: int
    request: Request
    inserted: float = field(default_factory=time.perf_counter)
    began: float | None = None
    tokens: list[int] = field(default_factory=list[int])

    @property
    def prompt(self) -> str:
        return self.request.prompt or ""


class EchoGenerator:
    """Continuous batching of echoes: a token is a character's code point.

    ``seconds`` is the time of one step.
    """

    def __init__(self, max_rows: int, seconds: float = 0.0) -> None:
        self._max_rows = max_rows
        self._seconds = seconds
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._aborts: deque[tuple[int | str, int]] = deque()
        self._last_uid = 0
        self._generated = 0

    def insert(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests; returns their uids."""
        rows: list[_Row] = []
        for request in requests:
            self._last_uid += 1
            rows.append(_Row(self._last_uid, request, tokens=list(request.prior_ids)))
        self._waiting += rows
        return [row.uid for row in rows]

    def next(self) -> list[Response]:
        """One character of every row."""
        responses = self._end_aborted()
        while self._waiting and len(self._rows) < self._max_rows:
            row = self._waiting.popleft()
            row.began = time.perf_counter()
            self._rows.append(row)
        if self._rows and self._seconds:
            time.sleep(self._seconds)
        answered = [_advance(row) for row in self._rows]
        ended = {response.uid for response in answered if response.finished}
        self._rows = [row for row in self._rows if row.uid not in ended]
        self._generated += sum(response.token is not None for response in answered)
        return responses + answered

    def abort(self, which: int | str) -> None:
        """End a uid, or all of a request id inserted so far, at the next step; from any thread."""
        self._aborts.append((which, self._last_uid))

    def has_work(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._rows)

    def stats(self) -> dict[str, Any]:
        """Counts of what is in flight and what was generated."""
        return {
            "queued": len(self._waiting),
            "decoding": len(self._rows),
            "max_rows": self._max_rows,
            "generated_tokens": self._generated,
        }

    def close(self) -> list[Response]:
        """End every row."""
        ended = [*self._rows, *self._waiting]
        self._rows = []
        self._waiting.clear()
        return [_cancelled(row) for row in ended]

    def _end_aborted(self) -> list[Response]:
        wanted = [self._aborts.popleft() for _ in range(len(self._aborts))]
        if not wanted:
            return []
        uids = {which for which, _ in wanted}
        lives = dict(wanted)
        ended = [
            row
            for row in (*self._rows, *self._waiting)
            if row.uid in uids or row.uid <= lives.get(row.request.request_id, 0)
        ]
        gone = {row.uid for row in ended}
        self._rows = [row for row in self._rows if row.uid not in gone]
        self._waiting = deque(row for row in self._waiting if row.uid not in gone)
        return [_cancelled(row) for row in ended]


def build_noop(config: WorkerConfig) -> Backend:
    """The backend of ``noop:[SECONDS]``; raises :class:`ConfigError`."""
    seconds = (config.model or "").removeprefix(PREFIX) or "0"
    try:
        pause = float(seconds)
    except ValueError as error:
        raise ConfigError(f"model noop:{seconds}: write noop: or noop:SECONDS") from error
    return Backend(
        generator=EchoGenerator(config.max_rows, pause),
        prepare=_prepare,
        names=frozenset({NAME}),
        identity=NAME,
        max_rows=config.max_rows,
    )


def _prepare(job: Job, read_blob: BlobReader) -> Request:  # noqa: ARG001 - the interface's
    for _, ref in job.media():
        if ref.error is not None:
            from mlxq_worker.prepare.media.source import (  # noqa: PLC0415 - no other needs Pillow
                producer_error,
            )

            raise producer_error(ref.error)
    parts = (part for message in job.chat() for part in message.parts())
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return Request(job.id, prompt=text, sampling=job.sampling)


def _advance(row: _Row) -> Response:
    limit = min(row.request.sampling.max_tokens, len(row.prompt))
    token = None
    if len(row.tokens) < limit:
        token = ord(row.prompt[len(row.tokens)])
        row.tokens.append(token)
    response = Response(row.uid, row.request.request_id, token)
    response.text = "" if token is None else chr(token)
    if len(row.tokens) >= limit:
        reason: FinishReason = "length" if limit < len(row.prompt) else "stop"
        response.finish_reason = reason
        response.usage, response.times = _usage(row), _times(row)
    return response


def _cancelled(row: _Row) -> Response:
    return Response(
        row.uid,
        row.request.request_id,
        finish_reason="cancelled",
        usage=_usage(row),
        times=_times(row),
    )


def _usage(row: _Row) -> Usage:
    return Usage(prompt_tokens=len(row.prompt), completion_tokens=len(row.tokens))


def _times(row: _Row) -> Times:
    now = time.perf_counter()
    began = now if row.began is None else row.began
    return Times(waiting=began - row.inserted, decode=now - began)

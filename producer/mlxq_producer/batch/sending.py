"""Lines become jobs of the queue."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from mlxq_producer.batch.body import Plan, job_fields
from mlxq_producer.batch.lines import BadLine, Line
from mlxq_producer.batch.rows import Sent
from mlxq_producer.client import Producer
from mlxq_producer.errors import SubmitErrors
from mlxq_schemas.errors import MlxqError, QueueFull, QueueUnavailable, RedisFull

T = TypeVar("T")

PATIENCE_SECONDS: Final = 60.0
"""How long a server that is away or full is waited for."""
_JOB: Final = re.compile(r"\Ajob batch_\S+: ")
_PASSING: Final = (QueueUnavailable, QueueFull, RedisFull)


def patiently(ask: Callable[[], T]) -> T:
    """What ``ask`` returns; asks again while the server is away or full.

    Raises what it raised last once :data:`PATIENCE_SECONDS` are over.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    delay = 0.2
    while True:
        try:
            return ask()
        except _PASSING:
            if time.monotonic() > end:
                raise
        time.sleep(delay)
        delay = min(2 * delay, 5.0)


def send(producer: Producer, plan: Plan, lines: Sequence[Line]) -> list[Sent | BadLine]:
    """Submit the jobs of lines, each accepted once however often it is sent.

    Lines that cannot become jobs come back as :class:`BadLine`. Raises as :func:`patiently`.
    """
    outcomes: list[Sent | BadLine] = []
    jobs: list[dict[str, Any]] = []
    places: list[int] = []
    for line in lines:
        made = job_of(line, plan)
        if isinstance(made, BadLine):
            outcomes.append(made)
        else:
            places.append(len(outcomes))
            outcomes.append(made[0])
            jobs.append(made[1])
    refused = patiently(lambda: _submit(producer, jobs))
    for i, error in refused.items():
        sent = outcomes[places[i]]
        outcomes[places[i]] = _bad(sent.number, sent.custom_id, error)
    return outcomes


def job_of(line: Line, plan: Plan) -> BadLine | tuple[Sent, dict[str, Any]]:
    """A line's job, and what to remember of it; or why there is none."""
    if isinstance(line, BadLine):
        return line
    try:
        fields = job_fields(line, plan)
    except MlxqError as error:
        return _bad(line.number, line.custom_id, error)
    sent = Sent(line.number, line.custom_id, line.url, fields["stream"], plan.round)
    return sent, fields


def _submit(producer: Producer, jobs: Sequence[dict[str, Any]]) -> dict[int, MlxqError]:
    """Why jobs were refused, by position; raises an error that may pass."""
    try:
        producer.submit_many(jobs, window=len(jobs))
    except SubmitErrors as error:
        for one in error.errors.values():
            if isinstance(one, _PASSING):
                raise one from error
        return dict(error.errors)
    return {}


def _bad(number: int, custom_id: str | None, error: MlxqError) -> BadLine:
    # In a body, fields for sampling stand beside the others, and nobody has seen the job's id.
    words = _JOB.sub("", error.message).replace("sampling.", "")
    return BadLine(number, custom_id, error.code, f"line {number}: {words}")

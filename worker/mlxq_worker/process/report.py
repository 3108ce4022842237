"""What becomes of a job, as events and results: the engine's responses in the queue's words."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlxq_schemas import (
    Cancelled,
    ExpiredEvent,
    Failed,
    Finished,
    FinishReason,
    Provenance,
    Result,
    Retrying,
    Started,
    Terminal,
    Timing,
    Usage,
)
from mlxq_schemas.errors import GenerationFailed, JobTimeout, MlxqError
from mlxq_worker.engine.request import Response, Times
from mlxq_worker.process.counters import Counters
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.redact import redact
from mlxq_worker.queue.outbox import Closing, Ending, PutOff
from mlxq_worker.queue.publish import Publisher

log = logging.getLogger(__name__)

LONGEST_DELAY: Final = 600.0
"""Most seconds between two attempts."""


@dataclass(frozen=True)
class Retries:
    """How often a job is tried that does not say so itself, and seconds before the second time."""

    max_attempts: int = 3
    delay: float = 1.0

    def allow(self, flight: Flight) -> bool:
        """True if one more error of the job is not its last."""
        asked = flight.job.max_attempts if flight.job else None
        return flight.owned.errors + 1 < (asked or self.max_attempts)

    def pause(self, errors: int) -> float:
        """Seconds to wait after so many errors (from 1): doubled each time, with jitter."""
        longest = min(LONGEST_DELAY, self.delay * 2.0 ** min(errors - 1, 32))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing


class Reporter:
    """Turns what happens to flights into what is published. Any thread may call it."""

    def __init__(
        self, publisher: Publisher, flights: Flights, worker: str, retries: Retries
    ) -> None:
        self._publisher = publisher
        self._flights = flights
        self._worker = worker
        self._retries = retries
        self.identity = ""
        self.counters = Counters()

    def started(self, flight: Flight, restart: str = "") -> None:
        """An attempt begins. ``restart`` says why the text that readers have is void, if it is."""
        claim = flight.owned
        if flight.stage >= Stage.ENDING:
            return
        if restart:
            event = Retrying(
                job=claim.job_id,
                attempt=claim.attempt,
                code="restart",
                message=restart,
                restart=True,
            )
            self._publisher.add(claim, event)
        event = Started(
            job=claim.job_id, attempt=claim.attempt, worker=self._worker, model=self.identity
        )
        self._publisher.add(claim, event)
        flight.began = time.monotonic()
        flight.started = True

    def responses(self, responses: Sequence[Response]) -> None:
        """One step of the engine. What a row gave in it is published at once, its end included."""
        steps: dict[str, list[Response]] = {}
        for response in responses:
            self.counters.add(response)
            steps.setdefault(response.request_id, []).append(response)
        for request_id, step in steps.items():
            flight = self._flights.by_request(request_id)
            if flight is None:
                continue  # lost or handed back meanwhile
            try:
                self._step(flight, step)
            except Exception:
                log.exception("cannot report", extra={"job": flight.owned.job_id})
                self.failed(flight, MlxqError("the worker could not report the job's output"))

    def failed(
        self,
        flight: Flight,
        error: MlxqError,
        usage: Usage | None = None,
        times: Times | None = None,
    ) -> None:
        """The job met an error: it is tried again if that may help, else it has failed."""
        claim = flight.owned
        if error.transient and flight.stop is not None:
            self.stopped(flight, usage, times)
            return
        code, message = error.code, redact(error.message)
        if error.transient and self._retries.allow(flight):
            due = self._flights.clock.now() + self._retries.pause(claim.errors + 1)
            if flight.job is not None and flight.job.deadline is not None:
                due = min(due, flight.job.deadline)
            self._put_off(flight, code, message, due, errors=1)
            return
        event = Failed(job=claim.job_id, attempt=claim.attempt, code=code, message=message)
        self._end(flight, event, usage, times)

    def too_early(self, flight: Flight, not_before: float) -> None:
        """The job was pushed to its stream before its time (unix seconds)."""
        self._put_off(flight, "not_before", "the job's time has not come", not_before, errors=0)

    def stopped(
        self, flight: Flight, usage: Usage | None = None, times: Times | None = None
    ) -> None:
        """The job ends for the reason that its ``stop`` says."""
        claim = flight.owned
        match flight.stop:
            case Stop.CANCELLED:
                event = Cancelled(job=claim.job_id, attempt=claim.attempt)
                self._end(flight, event, usage, times)
            case Stop.EXPIRED:
                event = ExpiredEvent(job=claim.job_id, attempt=claim.attempt)
                self._end(flight, event, usage, times)
            case Stop.TIMEOUT:
                limit = flight.job.timeout if flight.job else None
                error = JobTimeout(
                    f"job {claim.job_id} ran longer than its timeout of {limit:g} s: "
                    "allow it more time, or ask for fewer tokens"
                )
                self.failed(flight, error, usage, times)
            case None:
                pass  # the engine also ends rows when it is closed: those are handed back

    def settled(self, request_id: str, ending: Closing) -> None:
        """The server has the result, or has put the job off."""
        flight = self._flights.by_request(request_id)
        if flight is None or not self._flights.advance(flight, Stage.GONE):
            return
        match ending.event:
            case Finished():
                self.counters.done += 1
            case Cancelled():
                self.counters.cancelled += 1
            case Failed() as event:
                self.counters.failed += 1
                log.info(
                    "failed",
                    extra={"job": event.job, "code": event.code, "reason": event.message},
                )
            case ExpiredEvent():
                self.counters.expired += 1
            case Retrying() as event:
                self.counters.put_off += 1
                log.info(
                    "put off",
                    extra={
                        "job": event.job,
                        "code": event.code,
                        "reason": event.message,
                        "delay": event.delay,
                    },
                )

    def _step(self, flight: Flight, step: Sequence[Response]) -> None:
        for response in step:
            if flight.stage < Stage.ENDING:
                self._response(flight, response)
        streams = flight.job is None or flight.job.stream
        if flight.stage < Stage.ENDING and streams and flight.unsent_text:
            self._publisher.add_text(flight.owned, *flight.take_unsent())

    def _response(self, flight: Flight, response: Response) -> None:
        if response.token is not None:
            flight.generated += 1
            flight.unsent_ids.append(response.token)
        if response.logprobs is not None:
            flight.unsent_logprobs.append(response.logprobs)
        if response.text:
            flight.text.append(response.text)
            flight.unsent_text.append(response.text)
        match response.finish_reason:
            case None:
                pass
            case "error":
                error = response.error or GenerationFailed("the engine gave no reason")
                self.failed(flight, error, response.usage, response.times)
            case "cancelled":
                self.stopped(flight, response.usage, response.times)
            case reason:
                self._finished(flight, reason, response)

    def _finished(self, flight: Flight, reason: FinishReason, response: Response) -> None:
        claim, usage = flight.owned, response.usage or flight.usage
        event = Finished(
            job=claim.job_id,
            attempt=claim.attempt,
            reason=reason,
            text="".join(flight.text),
            usage=usage,
        )
        self._end(flight, event, response.usage, response.times)

    def _put_off(self, flight: Flight, code: str, message: str, due: float, *, errors: int) -> None:
        claim = flight.owned
        event = Retrying(
            job=claim.job_id,
            attempt=claim.attempt,
            code=code,
            message=message,
            delay=round(max(0.0, due - self._flights.clock.now()), 3),
        )
        self._close(flight, lambda: PutOff(event, due, errors))

    def _end(
        self, flight: Flight, event: Terminal, usage: Usage | None, times: Times | None
    ) -> None:
        self._close(
            flight,
            lambda: Ending(
                event, self._result(flight, event, usage or flight.usage, times or Times())
            ),
        )

    def _close(self, flight: Flight, closing: Callable[[], Closing]) -> None:
        """Publish what is unsent and the closing, in one write: none is there without the other.

        The ids of tokens without text are among it, such as that of the end of the sequence.
        """
        if self._flights.advance(flight, Stage.ENDING):
            self._publisher.end(flight.owned, closing(), *flight.take_unsent())

    def _result(self, flight: Flight, event: Terminal, usage: Usage, times: Times) -> Result:
        claim = flight.owned
        timing = Timing(
            queued=flight.queued + times.waiting,
            prepare=flight.preparing,
            prefill=times.prefill,
            decode=times.decode,
        )
        provenance = Provenance(
            model=self.identity,
            worker=self._worker,
            attempt=claim.attempt,
            media=list(flight.media),
            sampler=_sampler(flight),
        )
        return Result(
            job=claim.job_id,
            attempt=claim.attempt,
            t=event.t,
            type=event.type,
            reason=event.reason if isinstance(event, Finished) else None,
            text="".join(flight.text),
            code=event.code if isinstance(event, Failed) else None,
            message=event.message if isinstance(event, Failed) else None,
            usage=usage,
            timing=timing,
            provenance=provenance,
        )


def _sampler(flight: Flight) -> dict[str, Any]:
    if flight.job is None:
        return {}
    fields = flight.job.sampling.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in fields.items() if value not in ([], {})}

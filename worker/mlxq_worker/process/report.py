"""What becomes of a job, as events and results: the engine's responses in the queue's words."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxq_schemas import (
    Cancelled,
    Failed,
    Finished,
    FinishReason,
    Provenance,
    Result,
    Retrying,
    Started,
    Terminal,
    Timing,
    Token,
    Usage,
)
from mlxq_schemas.errors import GenerationFailed, MlxqError
from mlxq_worker.engine.request import Response, Times
from mlxq_worker.process.flight import Flight, Flights, Stage
from mlxq_worker.process.redact import redact
from mlxq_worker.queue.outbox import Ending
from mlxq_worker.queue.publish import Publisher

log = logging.getLogger(__name__)


@dataclass
class Counters:
    """Since the start: jobs ended, and tokens generated."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled


class Reporter:
    """Turns what happens to flights into what is published. Any thread may call it."""

    def __init__(self, publisher: Publisher, flights: Flights, worker: str) -> None:
        self._publisher = publisher
        self._flights = flights
        self._worker = worker
        self.identity = ""
        self.counters = Counters()

    def started(self, flight: Flight, *, restart: bool = False) -> None:
        """An attempt begins. ``restart``: the text that readers have is void."""
        claim = flight.owned
        if restart:
            event = Retrying(
                job=claim.job_id,
                attempt=claim.attempt,
                code="restart",
                message="the text so far has no token ids to go on from",
                restart=True,
            )
            self._publisher.add(claim, event)
        self._publisher.add(
            claim, Started(job=claim.job_id, attempt=claim.attempt, worker=self._worker)
        )

    def responses(self, responses: Sequence[Response]) -> None:
        """One step of the engine."""
        for response in responses:
            flight = self._flights.by_request(response.request_id)
            if flight is None or flight.stage >= Stage.ENDING:
                continue  # ended, lost or handed back meanwhile
            try:
                self._response(flight, response)
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
        """The job cannot be done."""
        claim = flight.owned
        event = Failed(
            job=claim.job_id,
            attempt=claim.attempt,
            code=error.code,
            message=redact(error.message),
        )
        self._end(flight, event, usage, times)

    def cancelled(
        self, flight: Flight, usage: Usage | None = None, times: Times | None = None
    ) -> None:
        """The job ends because somebody asked for it."""
        claim = flight.owned
        self._end(flight, Cancelled(job=claim.job_id, attempt=claim.attempt), usage, times)

    def settled(self, request_id: str, ending: Ending) -> None:
        """The server has the result."""
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
            case _:
                pass

    def _response(self, flight: Flight, response: Response) -> None:
        if response.token is not None:
            self.counters.tokens += 1
            flight.unsent_ids.append(response.token)
        if response.text:
            flight.text.append(response.text)
            flight.unsent_text.append(response.text)
            if flight.job is None or flight.job.stream:
                self._send_text(flight)
        match response.finish_reason:
            case None:
                pass
            case "error":
                error = response.error or GenerationFailed("the engine gave no reason")
                self.failed(flight, error, response.usage, response.times)
            case "cancelled":
                # The engine also ends rows when it is closed: those are handed back.
                if flight.cancelled:
                    self.cancelled(flight, response.usage, response.times)
            case reason:
                self._finished(flight, reason, response)

    def _send_text(self, flight: Flight) -> None:
        text, flight.unsent_text = "".join(flight.unsent_text), []
        ids, flight.unsent_ids = flight.unsent_ids, []
        claim = flight.owned
        self._publisher.add(
            claim, Token(job=claim.job_id, attempt=claim.attempt, text=text, ids=ids)
        )

    def _finished(self, flight: Flight, reason: FinishReason, response: Response) -> None:
        claim = flight.owned
        event = Finished(
            job=claim.job_id,
            attempt=claim.attempt,
            reason=reason,
            text="".join(flight.text),
            usage=response.usage or Usage(),
        )
        self._end(flight, event, response.usage, response.times)

    def _end(
        self, flight: Flight, event: Terminal, usage: Usage | None, times: Times | None
    ) -> None:
        """Publish the last text and the ending, in this order and without another in between."""
        if flight.stage >= Stage.ENDING:
            return
        if flight.unsent_text:
            self._send_text(flight)
        if self._flights.advance(flight, Stage.ENDING):
            result = self._result(flight, event, usage or Usage(), times or Times())
            self._publisher.end(flight.owned, Ending(event, result))

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
            reason=getattr(event, "reason", None),
            text="".join(flight.text),
            code=getattr(event, "code", None),
            message=getattr(event, "message", None),
            usage=usage,
            timing=timing,
            provenance=provenance,
        )


def _sampler(flight: Flight) -> dict[str, Any]:
    if flight.job is None:
        return {}
    fields = flight.job.sampling.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in fields.items() if value not in ([], {})}

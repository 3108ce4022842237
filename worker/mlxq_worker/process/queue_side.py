"""The queue side of a worker, wired: each duty with its own connection and thread."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import redis

from mlxq_schemas import Keys
from mlxq_schemas.clock import ServerClock
from mlxq_worker.config import WorkerConfig
from mlxq_worker.process.flight import Flight, Flights, Stage
from mlxq_worker.process.limits import Limits
from mlxq_worker.process.quarantine import Quarantine
from mlxq_worker.process.report import Reporter, Retries
from mlxq_worker.process.taking import Taker
from mlxq_worker.queue.blob_keeper import BlobKeeper
from mlxq_worker.queue.claim import Claim, Claimer, Retention
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.control import Control
from mlxq_worker.queue.delayed import Promoter
from mlxq_worker.queue.duty import Duty
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.eviction import EvictionWatch
from mlxq_worker.queue.hand_back import hand_back
from mlxq_worker.queue.health import Fields, Health
from mlxq_worker.queue.intake import Intake
from mlxq_worker.queue.janitor import Janitor
from mlxq_worker.queue.lease import LeaseKeeper
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.outbox import Closing
from mlxq_worker.queue.publish import Publisher
from mlxq_worker.queue.reclaim import Reclaimer
from mlxq_worker.queue.standstill import Standstill

log = logging.getLogger(__name__)

LOOK_PERIOD: Final = 1.0
"""Seconds, at most, between two looks at the clocks."""


class QueueSide:
    """Everything that talks to Redis for one worker.

    ``abort`` ends a request in the engine; ``prepare`` gets claimed flights; ``fields`` gives
    the health row; ``hindrance`` says (as a word, or "") why no jobs can be done now; ``on_empty``
    is called when there was no job to read.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        abort: Callable[[str], None],
        prepare: Callable[[Flight], None],
        fields: Callable[[], Fields],
        hindrance: Callable[[], str],
        on_empty: Callable[[], None],
    ) -> None:
        self._config = config
        self._abort = abort
        self._hindrance = hindrance
        self.keys = Keys(config.queue)
        self.client: redis.Redis = connect(config.redis_url, config.name, config.queue)
        self.clock = ServerClock()
        self.flights = Flights(clock=self.clock)
        keep = Retention(config.result_ttl, config.dead_ttl)
        self.publisher = Publisher(
            Link(self.client),
            self.keys,
            config.name,
            keep=keep,
            on_settled=self._settled,
            on_lost=self._lost,
        )
        retries = Retries(config.max_attempts, config.retry_delay)
        self.reporter = Reporter(self.publisher, self.flights, config.name, retries)
        claimer = Claimer(self.keys, config.name, keep)
        quarantine = Quarantine(
            Link(self.client),
            self.keys,
            self.flights,
            prepare=prepare,
            on_lost=self._lost,
            on_open=self._open_again,
        )
        self._taker = Taker(
            self.flights,
            claimer,
            config.capacity,
            limit=self._limit,
            quarantine=quarantine,
            give_back=self._give_back,
            prepare=prepare,
            reread=self._reread,
        )
        self._reader = self._make_intake(on_empty)
        self._health = Health(Link(self.client), self.keys, config.name, fields, self.clock)
        self._control = self._make_control()
        self._janitor = Janitor(Link(self.client), self.keys, config.name, config.lease)
        self._eviction = EvictionWatch(Link(self.client), self._open_again)
        self._standstill = Standstill(config.lease / 2)
        self._keeper = self._make_lease()
        self._intake = Duty("intake", self._reader.step)
        self._reclaim = Duty("reclaim", self._make_reclaimer().step)
        self._quarantine = Duty("quarantine", quarantine.step)
        self._publish = Duty("publish", self.publisher.step)
        self._lease = Duty("lease", self._keeper.step, longest=config.lease / 4)
        self._others = [
            self._lease,
            Duty("standstill", self._look_at_clocks),
            Duty("control", self._control.step),
            Duty("health", self._health.step),
            Duty("delayed", Promoter(Link(self.client), self.keys).step),
            Duty("limits", Limits(self.flights, abort, self.reporter.stopped).step),
            Duty("blobs", BlobKeeper(Link(self.client), self.keys, config.name).step),
            Duty("janitor", self._janitor.step),
            Duty("eviction", self._eviction.step),
        ]
        self._takers = (self._intake, self._reclaim, self._quarantine)
        self.flights.on_room = self._room_again
        self.publisher.wake = self._publish.wake
        quarantine.wake = self._quarantine.wake

    def start(self) -> None:
        """Take jobs from now on."""
        for duty in (self._publish, *self._others, *self._takers):
            duty.start()

    def stop_taking(self, timeout: float) -> None:
        """Read no more jobs; returns when none can come any more."""
        for duty in self._takers:
            duty.stop()
        for duty in self._takers:
            duty.join(timeout)

    def hand_back(self, flights: Sequence[Flight]) -> int:
        """Give jobs back to the queue unfinished; how many went."""
        claims = [f.owned for f in flights if self.flights.advance(f, Stage.GONE)]
        for claim in claims:
            self.publisher.drop(claim.request_id)
        link = Link(self.client)
        try:
            return self._give_back(link, claims)
        finally:
            link.close()

    def close(self) -> None:
        """End all duties and take the health row away."""
        duties = (*self._takers, *self._others, self._publish)
        for duty in duties:
            duty.stop()
        for duty in duties:
            duty.join(2.0)
        self._control.close()
        self._health.remove()
        self._janitor.leave()
        self.client.close()

    @property
    def problem(self) -> str:
        """Why no jobs are taken, as one word; "" if they are."""
        return self._eviction.problem or self._hindrance()

    def _limit(self) -> int:
        if self._intake.stopping or self.publisher.full() or self.problem:
            return 0
        if self._config.max_jobs is None:
            return sys.maxsize
        return self._config.max_jobs - self.reporter.counters.ended - len(self.flights)

    def _settled(self, request_id: str, ending: Closing) -> None:
        self.reporter.settled(request_id, ending)

    def _reread(self) -> None:
        self._reader.reread()

    def _lost(self, request_id: str, why: str) -> None:
        """The job is no longer ours: compute and publish nothing more for it."""
        flight = self.flights.by_request(request_id)
        if flight is not None and self.flights.advance(flight, Stage.GONE):
            log.warning("lost a job", extra={"job": flight.owned.job_id, "reason": why})
            if self._standstill.woke_within(2 * self._config.lease):
                self._keeper.outlived(flight.owned)
                self._lease.wake()
            self.publisher.drop(request_id)
            self._abort(request_id)

    def _lease_lost(self, entry: Entry) -> None:
        flight = self.flights.by_entry(entry)
        # One that is ending may just have been acknowledged; if not, the publisher hears of it.
        if flight is not None and flight.claim is not None and flight.stage < Stage.ENDING:
            self._lost(flight.claim.request_id, "another worker has taken it over")

    def _look_at_clocks(self) -> float:
        """Whoever slept renews first of all; seconds until the next look."""
        if self._standstill.look():
            self._lease.wake()
        return min(LOOK_PERIOD, self._config.lease / 20)

    def _cancel(self, job_id: str, life: str) -> None:
        for flight in self.flights.cancel(job_id, life):
            self._abort(flight.owned.request_id)

    def _give_back(self, link: Link, claims: Sequence[Claim]) -> int:
        return hand_back(link, self.keys, self._config.name, claims)

    def _room_again(self) -> None:
        self._quarantine.wake()
        self._intake.wake()

    def _open_again(self) -> None:
        self._intake.wake()
        self._reclaim.wake()

    def _wake_reclaim(self) -> None:
        self._reclaim.wake()

    def _make_intake(self, on_empty: Callable[[], None]) -> Intake:
        link = Link(self.client)
        return Intake(
            link,
            self.keys,
            self._config.name,
            room=self._taker.room,
            take=partial(self._taker.take, link),
            on_empty=on_empty,
        )

    def _make_reclaimer(self) -> Reclaimer:
        link = Link(self.client)
        return Reclaimer(
            link,
            self.keys,
            self._config.name,
            lease=self._config.lease,
            period=self._config.lease / 4,
            room=self._taker.room_for_lost,
            take=partial(self._taker.take, link),
            standstill=self._standstill,
        )

    def _make_lease(self) -> LeaseKeeper:
        return LeaseKeeper(
            Link(self.client),
            self.keys,
            self._config.name,
            lease=self._config.lease,
            held=self.flights.entries,
            on_lost=self._lease_lost,
            standstill=self._standstill,
        )

    def _make_control(self) -> Control:
        return Control(
            self.client,
            self.keys,
            held=self.flights.lives,
            cancel=self._cancel,
            reclaim=self._wake_reclaim,
        )

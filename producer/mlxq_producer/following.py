"""Reading the events of jobs in order, without gap or repeat, until each has ended.

Pub/sub drops what a slow, late or disconnected reader misses. So the stream of a job's events is
the truth and the channel only makes it quick: subscribe first, replay the stream, then take what
arrives if it is the next by ``seq``, and read the stream again where it is not, or where a job has
been silent for a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlxq_producer.steps import Command, Listen, Sleep, Steps, Subscribe, checked
from mlxq_schemas import Event, Keys, Result, is_terminal
from mlxq_schemas.errors import (
    Expired,
    JobError,
    MlxqError,
    QueueUnavailable,
    UnknownJob,
    WaitTimeout,
)
from mlxq_schemas.events import TERMINAL_TYPES, event_adapter
from mlxq_schemas.wire import decode_event, decode_result

POLL_SECONDS: Final = 1.0
"""Silence after which a job's stream is read again; doubles up to ``MAX_POLL_SECONDS``."""
MAX_POLL_SECONDS: Final = 4.0
RECONNECT_SECONDS: Final = 30.0
"""How long a server that went away is waited for."""
PAGE: Final = 500
"""Events read from a stream at once."""


@dataclass
class Cursor:
    """Where the reader of one job stands; ``due`` (monotonic seconds) is its next poll.

    ``life`` tells the job from a later one of the same id, once the server has told it.
    """

    job_id: str
    next_seq: int = 0
    life: bytes | None = None
    known: bool = False
    due: float = 0.0
    interval: float = POLL_SECONDS

    def wait_longer(self, now: float) -> None:
        self.due = now + self.interval
        self.interval = min(self.interval * 2, MAX_POLL_SECONDS)

    def heard(self, now: float) -> None:
        self.known = True
        self.interval = POLL_SECONDS
        self.due = now + self.interval


class Follower:
    """Follows jobs over one subscription; ``starts`` maps each id to its first wanted ``seq``.

    ``timeout`` is in seconds, for all of them to end. With ``wait_for_job`` an id that nobody
    has submitted yet is waited for.
    """

    def __init__(
        self,
        keys: Keys,
        starts: Mapping[str, int],
        *,
        timeout: float | None = None,
        wait_for_job: bool = False,
    ) -> None:
        self._keys = keys
        self._open = {job_id: Cursor(job_id, seq) for job_id, seq in starts.items()}
        self._channels = [keys.tokens(job_id) for job_id in starts]
        self._timeout = timeout
        self._deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self._wait_for_job = wait_for_job
        self._lost_at = 0.0
        self._next_due = 0.0  # no later than the earliest ``due``: not sought for every message

    def events(self) -> Steps[None]:
        """Yields every event of every job. Raises :class:`UnknownJob`, :class:`WaitTimeout`,
        :class:`Expired`, and :class:`QueueUnavailable` once a server stays away.
        """
        subscribed = ever = False
        while self._open:
            try:
                if not subscribed:
                    yield Subscribe(self._channels)
                    subscribed = ever = True
                    self._all_due()
                yield from self._turn()
                self._lost_at = 0.0
            except QueueUnavailable:
                now = time.monotonic()
                self._lost_at = self._lost_at or now
                if not ever or now - self._lost_at > RECONNECT_SECONDS or now > self._deadline:
                    raise
                subscribed = False
                yield Sleep(0.2)

    def _turn(self) -> Steps[None]:
        """Read the streams that are due, then wait for one message."""
        now = time.monotonic()
        if now >= self._next_due:
            due = [cursor for cursor in self._open.values() if cursor.due <= now]
            if due:
                yield from self._catch_up(due)
            if not self._open:
                return
            self._next_due = min(cursor.due for cursor in self._open.values())
            now = time.monotonic()
        if now >= self._deadline:
            raise self._timed_out()
        until = min(self._deadline, self._next_due)
        message: bytes | None = yield Listen(max(until - now, 0.0))
        if message is not None:
            yield from self._hear(message)

    def _hear(self, message: bytes) -> Steps[None]:
        try:
            event = decode_event(message)
        except JobError:
            self._all_due()  # not ours: anybody may publish, and the streams are the truth
            return
        yield from self._receive(event)

    def _receive(self, event: Event) -> Steps[None]:
        """Take a live event if it is the next of its job; a gap makes the stream due."""
        cursor = self._open.get(event.job)
        if cursor is None:
            return
        if event.seq < cursor.next_seq:
            if event.seq == 0:  # seen already, or another job under this id
                cursor.due = self._next_due = 0.0
            return
        cursor.heard(time.monotonic())
        if event.seq == cursor.next_seq:
            yield from self._take(cursor, event)
        else:
            cursor.due = self._next_due = 0.0

    def _take(self, cursor: Cursor, event: Event) -> Steps[None]:
        cursor.next_seq = event.seq + 1
        if is_terminal(event):
            del self._open[cursor.job_id]
        yield event

    def _catch_up(self, cursors: Sequence[Cursor]) -> Steps[None]:
        """Take what the streams of these jobs hold beyond their cursors."""
        replies = yield from checked(*(c for cursor in cursors for c in self._look(cursor)))
        self._lost_at = 0.0  # the server answers, though subscriptions may break off all the time
        silent: list[tuple[Cursor, bool, bool]] = []
        for i, cursor in enumerate(cursors):
            exists, (state, life), entries = replies[3 * i : 3 * i + 3]
            self._recognise(cursor, life)
            if entries:
                cursor.heard(time.monotonic())
            for event in _events(entries):
                if event.seq >= cursor.next_seq:
                    # A dead job that was sent again goes on after its end.
                    self._open[cursor.job_id] = cursor
                    yield from self._take(cursor, event)
            if len(entries) == PAGE:
                self._open[cursor.job_id] = cursor
                cursor.due = 0.0
            elif not entries:
                ended = (state or b"").decode(errors="replace") in TERMINAL_TYPES
                silent.append((cursor, bool(exists), ended))
        yield from self._judge(silent)

    def _recognise(self, cursor: Cursor, life: bytes | None) -> None:
        if cursor.life is not None and life not in (None, cursor.life):
            raise Expired(
                f"another job was submitted under the id {cursor.job_id}; "
                "the one that was followed is gone: follow it anew"
            )
        cursor.life = cursor.life or life

    def _look(self, cursor: Cursor) -> list[Command]:
        # In this order: a job that had ended before its stream is read shows its last event there.
        job, events = self._keys.job(cursor.job_id), self._keys.events(cursor.job_id)
        first = f"{cursor.next_seq + 1}-0"
        return [
            ("EXISTS", job),
            ("HMGET", job, "state", "life"),
            ("XRANGE", events, first, "+", "COUNT", PAGE),
        ]

    def _judge(self, silent: Sequence[tuple[Cursor, bool, bool]]) -> Steps[None]:
        """Decide about jobs whose streams hold nothing new: go on waiting, end, or raise."""
        over: list[tuple[Cursor, bool]] = []
        for cursor, exists, ended in silent:
            cursor.known = cursor.known or exists
            if ended or not exists:
                over.append((cursor, ended))
            else:
                cursor.wait_longer(time.monotonic())
        if not over:
            return
        results = yield from checked(*(("GET", self._keys.result(c.job_id)) for c, _ in over))
        for (cursor, ended), data in zip(over, results, strict=True):
            if data is not None:
                yield from self._end_by_result(cursor, decode_result(data))
            elif not ended and not cursor.known and self._wait_for_job:
                cursor.wait_longer(time.monotonic())
            else:
                raise self._gone(cursor)

    def _end_by_result(self, cursor: Cursor, result: Result) -> Steps[None]:
        """The events are gone by TTL, the result is not: it holds the last event."""
        if result.seq >= cursor.next_seq:
            yield from self._take(cursor, terminal_event(result))
        else:
            del self._open[cursor.job_id]

    def _gone(self, cursor: Cursor) -> MlxqError:
        if cursor.known:
            return Expired(f"job {cursor.job_id} has ended; its events and result are gone (TTL)")
        return unknown_job(self._keys, cursor.job_id)

    def _timed_out(self) -> WaitTimeout:
        names = ", ".join(list(self._open)[:3]) + (", ..." if len(self._open) > 3 else "")
        return WaitTimeout(
            f"{len(self._open)} job(s) did not end within {self._timeout:g} s ({names}): "
            "they go on, so follow them again or wait longer"
        )

    def _all_due(self) -> None:
        self._next_due = 0.0
        for cursor in self._open.values():
            cursor.due = 0.0


def unknown_job(keys: Keys, job_id: str) -> UnknownJob:
    """The error for an id that its queue does not know."""
    return UnknownJob(
        f"queue {keys.queue} has no job {job_id}: it was never submitted there, "
        "or it ended so long ago that it is gone (TTL)"
    )


def terminal_event(result: Result) -> Event:
    """The last event of a job, as its stored result holds it."""
    fields = {"v", "job", "attempt", "seq", "t", "type"}
    match result.type:
        case "finished":
            fields |= {"reason", "text", "usage"}
        case "failed":
            fields |= {"code", "message"}
        case "cancelled" | "expired":
            pass
    return event_adapter.validate_python(result.model_dump(include=fields))


def _events(entries: Iterable[Any]) -> Iterable[Event]:
    return (decode_event(fields.get(b"e", b"")) for _, fields in entries)

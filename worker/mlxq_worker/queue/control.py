"""What running workers are asked: ``cancel <id> <life>`` by producers, ``reclaim`` by each other.

A message may be late: the life tells the job that was meant from a later one of the same id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from mlxq_schemas import Keys
from mlxq_worker.queue.connection import SOCKET_TIMEOUT, is_sharded, text
from mlxq_worker.queue.link import LINK_ERRORS

LISTEN: Final = 0.25
"""Seconds that one step waits for a message."""
PING: Final = 10.0
"""Seconds of silence after which the connection is tried, which also keeps it from idling."""
SETTLED: Final = 1.0
"""Seconds after which a subscription that breaks off was a good one: it is made again quietly."""
RECLAIM: Final = "reclaim"
"""Sent by a worker that handed jobs back: others need not wait for their next sweep."""


class Control:
    """The step of the control duty.

    ``held``: ids and lives of the jobs in flight. ``cancel`` gets those of a job to end;
    ``reclaim`` is called when jobs were handed back.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        held: Callable[[], Sequence[tuple[str, str]]],
        cancel: Callable[[str, str], None],
        reclaim: Callable[[], None],
    ) -> None:
        self._client = client
        self._keys = keys
        self._held = held
        self._cancel = cancel
        self._reclaim = reclaim
        self._pubsub: Any = None
        self._since = 0.0
        self._ping_at = 0.0
        self._awaited = 0.0  # when an answer to our ping is due; 0: none is

    def step(self) -> float:
        """Wait for one message and do it."""
        try:
            message = self._heard()
        except BaseException:
            self.close()
            raise
        match message and message["type"]:
            case "subscribe" | "ssubscribe":
                self._catch_up()
            case "message" | "smessage":
                self._obey(text(message["data"]))
            case "sunsubscribe":
                self.close()  # the channel's slot went to another node
            case _:
                pass
        return 0.0

    def close(self) -> None:
        """Give the connection back."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()

    def _heard(self) -> Any:
        """The next message, if one comes. A connection that the other end closed is replaced."""
        try:
            pubsub = self._pubsub = self._pubsub or self._subscribed()
            message = pubsub.get_message(timeout=LISTEN)
            now = time.monotonic()
            if message is not None:
                self._awaited, self._ping_at = 0.0, now + PING
            elif not self._awaited and now > self._ping_at:
                pubsub.ping()
                self._awaited = now + SOCKET_TIMEOUT
            elif self._awaited and now > self._awaited:
                raise redis.TimeoutError("no answer to a ping")
        except LINK_ERRORS:
            if self._pubsub is None or time.monotonic() < self._since + SETTLED:
                raise
            self.close()
            self._pubsub = self._subscribed()
            return None
        return message

    def _subscribed(self) -> Any:
        pubsub = self._client.pubsub()
        subscribe = pubsub.ssubscribe if is_sharded(self._client) else pubsub.subscribe
        subscribe(self._keys.control)
        self._since = time.monotonic()
        self._ping_at, self._awaited = self._since + PING, 0.0
        return pubsub

    def _catch_up(self) -> None:
        """While we were not listening, cancels left a mark on their jobs."""
        held = list(self._held())
        if not held:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for job_id, _ in held:
                pipe.hmget(self._keys.job(job_id), "cancel", "life")
            marks = pipe.execute(raise_on_error=False)
        for (job_id, life), mark in zip(held, marks, strict=True):
            if mark == [b"1", life.encode()]:
                self._cancel(job_id, life)

    def _obey(self, message: str) -> None:
        match message.split(" "):
            case ["cancel", job_id, life]:
                self._cancel(job_id, life)
            case [word] if word == RECLAIM:
                self._reclaim()
            case _:
                pass

"""What running workers are asked: ``cancel <id> <life>`` by producers, ``reclaim`` by each other.

A message may be late: the life tells the job that was meant from a later one of the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import redis

from mlxq_schemas import Keys
from mlxq_worker.queue.connection import is_sharded, text

LISTEN: Final = 0.25
"""Seconds that one step waits for a message."""
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

    def step(self) -> float:
        """Wait for one message and do it."""
        try:
            pubsub = self._pubsub = self._pubsub or self._subscribed()
            message = pubsub.get_message(timeout=LISTEN)
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

    def _subscribed(self) -> Any:
        pubsub = self._client.pubsub()
        subscribe = pubsub.ssubscribe if is_sharded(self._client) else pubsub.subscribe
        subscribe(self._keys.control)
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

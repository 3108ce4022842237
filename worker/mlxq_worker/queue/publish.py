"""Publishing: the events of all rows since the last write go out in one write.

Nothing here waits for the server but the duty's own thread. An append is fenced by the lease
epoch but not idempotent: after a broken connection the job's hash tells whether it was done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from mlxq_schemas import Event, Keys, TokenLogprob
from mlxq_schemas.errors import MlxqError, QueueError
from mlxq_worker.queue.claim import Claim, Retention
from mlxq_worker.queue.connection import reason
from mlxq_worker.queue.hand_back import hand_back_command
from mlxq_worker.queue.link import Command, Link
from mlxq_worker.queue.outbox import Closing, Outbox, Standing

log = logging.getLogger(__name__)

IDLE_PAUSE: Final = 1.0
"""Seconds between looks when nobody wakes us."""
MAX_EVENTS: Final = 10_000
MAX_CHARS: Final = 64 * 1024 * 1024
"""Unsent events and characters beyond which intake stops."""

NO_JOB: Final = (None, None, None)
"""What is known of a job whose hash is gone, or was overwritten."""

PASSING: Final = (
    OutOfMemoryError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
    AskError,
    NoPermissionError,
)
PASSING_WORDS: Final = ("BUSY", "NOREPLICAS", "MISCONF", "WRONGTYPE")
PASSING_IN_SCRIPTS: Final = (
    "The user executing the script can't",
    *(f"-{word} " for word in ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "WRONGTYPE")),  # 6.2
)
"""Refusals that end by themselves or by an operator's hand: the write is kept and tried again."""


class Publisher:
    """The buffer, and the step of the publish duty.

    ``add``, ``end`` and ``drop`` may be called from any thread and only take a lock.
    ``on_settled`` and ``on_lost`` get request ids, in the duty's thread; ``wake`` wakes the duty.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        worker: str,
        *,
        keep: Retention,
        on_settled: Callable[[str, Closing], None],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._keep = keep
        self._on_settled = on_settled
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._boxes: dict[str, Outbox] = {}
        self._dirty: dict[str, Outbox] = {}
        self._writing = False
        self.wake: Callable[[], None] = lambda: None

    def add(self, claim: Claim, event: Event) -> None:
        """Publish an event of a claim, after those added before."""
        with self._lock:
            self._box(claim).add(event)
        self.wake()

    def add_text(
        self, claim: Claim, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        """Publish text, joined to what waits; cheap, for it is called for every token."""
        with self._lock:
            self._box(claim).text.add(text, ids, logprobs)
        self.wake()

    def end(
        self,
        claim: Claim,
        ending: Closing,
        text: str = "",
        ids: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """End a claim, after its events: its job ends, or is put off.

        The last text goes into the same write: whoever takes the job over before has neither.
        """
        with self._lock:
            box = self._box(claim)
            if text or ids:
                box.text.add(text, ids, logprobs)
            box.ending = ending
        self.wake()

    def drop(self, request_id: str) -> None:
        """Forget a claim that is no longer ours."""
        with self._lock:
            self._boxes.pop(request_id, None)
            self._dirty.pop(request_id, None)

    def full(self) -> bool:
        """True if so much is unsent that no more jobs should be taken."""
        with self._lock:
            boxes = self._dirty.values()
            many = sum(len(box.waiting) for box in boxes) + len(boxes) > MAX_EVENTS
            return many or sum(box.text.chars for box in boxes) > MAX_CHARS

    def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until all is published."""
        self.wake()
        with self._idle:
            return self._idle.wait_for(lambda: not self._dirty and not self._writing, timeout)

    def step(self) -> float:
        """Write what has gathered; the seconds until the next look.

        Raises a connection's error, or :class:`QueueError` if the server refuses for now; then
        everything unconfirmed is kept.
        """
        boxes = self._gather()
        if not boxes:
            return IDLE_PAUSE
        try:
            self._write(boxes)
        finally:
            with self._idle:
                self._writing = False
                self._idle.notify_all()
        return 0.0

    def _box(self, claim: Claim) -> Outbox:
        box = self._boxes.get(claim.request_id)
        if box is None:
            box = self._boxes[claim.request_id] = Outbox(claim)
        self._dirty[claim.request_id] = box
        return box

    def _gather(self) -> list[Outbox]:
        with self._lock:
            boxes = list(self._dirty.values())
            self._dirty = {}
            self._writing = bool(boxes)
        return boxes

    def _write(self, boxes: Sequence[Outbox]) -> None:
        pending = boxes
        try:
            generation = self._link.open()
            pending = self._verified(boxes, generation)
            with self._lock:
                pending = [box for box in pending if box.take()]
            commands = [self._command(box) for box in pending]
            replies = self._link.call(*commands) if commands else []
        except BaseException:
            self._keep_for_later(pending)
            raise
        refusals: list[Any] = []
        for box, reply in zip(pending, replies, strict=True):
            if not self._settle(box, reply, generation):
                self._keep_for_later([box])
                refusals.append(reply)
        if refusals:
            raise QueueError(f"the server refused {len(refusals)} writes: {refusals[0]}")

    def _command(self, box: Outbox) -> Command:
        try:
            return box.command(self._keys, self._keep)
        except Exception:
            # One job's bad event must not stop the events of all others for ever.
            log.exception("an event cannot be encoded", extra={"job": box.claim.job_id})
            box.give_up(MlxqError.code, "an event of this job could not be encoded")
            return box.command(self._keys, self._keep)

    def _verified(self, boxes: Sequence[Outbox], generation: int) -> list[Outbox]:
        """Ask the server about claims last written on another connection; those still ours."""
        doubtful = [box for box in boxes if box.doubtful(generation)]
        if not doubtful:
            return list(boxes)
        replies = self._link.call(
            *(("HMGET", self._keys.job(b.claim.job_id), "epoch", "state", "seq") for b in doubtful)
        )
        standing: dict[str, Standing] = {}
        for box, reply in zip(doubtful, replies, strict=True):
            if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
                raise QueueError(f"the server refused a look at a job: {reply}")
            known = NO_JOB if isinstance(reply, Exception) else reply
            with self._lock:
                standing[box.claim.request_id] = box.judge(known, generation)
        return [box for box in boxes if self._still_ours(box, standing.get(box.claim.request_id))]

    def _still_ours(self, box: Outbox, standing: Standing | None) -> bool:
        match standing:
            case Standing.SETTLED:
                self._settled(box)
            case Standing.LOST:
                self._lost(box, "another worker has it")
            case Standing.REWOUND:
                # The server restarted without its last writes: a new claim reads what is there.
                self._link.call(hand_back_command(self._keys, self._worker, box.claim))
                self._lost(box, "the server lost events of it")
            case _:
                return True
        return False

    def _settle(self, box: Outbox, reply: Any, generation: int) -> bool:
        """Act on the reply to a write; False if the write must be tried again."""
        if isinstance(reply, Exception):
            if _passes(reply):
                return False
            self._lost(box, f"the server refused its events: {reason(reply)}")
        elif reply == -1:
            self._lost(box, "another worker has it")
        elif box.closing is not None:
            self._settled(box)
        else:
            with self._lock:
                box.confirm(generation)
        return True

    def _settled(self, box: Outbox) -> None:
        self.drop(box.claim.request_id)
        if box.closing is not None:
            self._on_settled(box.claim.request_id, box.closing)

    def _lost(self, box: Outbox, why: str) -> None:
        self.drop(box.claim.request_id)
        self._on_lost(box.claim.request_id, why)

    def _keep_for_later(self, boxes: Sequence[Outbox]) -> None:
        with self._lock:
            for box in boxes:
                if box.claim.request_id in self._boxes:
                    self._dirty[box.claim.request_id] = box


def _passes(refusal: Exception) -> bool:
    words = str(refusal)
    if isinstance(refusal, PASSING) or words.startswith(PASSING_WORDS):
        return True
    return any(word in words for word in PASSING_IN_SCRIPTS)

"""Commands that wait say for what: a job's place in the queue, a worker that is not there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from mlxq_producer.client import Producer
from mlxq_producer.hindrances import hindrance, without_figures
from mlxq_schemas import Event, Token
from mlxq_schemas.errors import MlxqError, QueueUnavailable

SILENCE_SECONDS: Final = 1.5
"""Nothing is said before so long a silence."""
LOOK_SECONDS: Final = 2.0
"""Between two looks at the queue."""
AGAIN_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 60.0
"""Before the same is said with other numbers; each time twice as long, up to this."""


def to_stderr(text: str) -> None:
    """Print a line for people."""
    print(text, file=sys.stderr, flush=True)


class Waiting:
    """Looks at the queue while nothing is heard, and says what is waited for when that changes.

    ::

        with Waiting(producer, job_id) as waiting:
            for event in waiting.over(producer.follow(job_id)):
                ...

    With ``job_id`` it says where the job stands (``queued; 12 ahead; no worker is up: start mlxq
    worker``). Without one it is for many jobs, which may ask for ``model``: it says only what
    keeps all of them from being done, and when that is over. ``say`` None: it says nothing.
    """

    def __init__(
        self,
        producer: Producer,
        job_id: str | None = None,
        *,
        model: str | None = None,
        say: Callable[[str], None] | None = to_stderr,
    ) -> None:
        self._producer = producer
        self._job_id = job_id
        self._model = model
        self._say = say
        self._heard_at = time.monotonic()
        self._speaking = False
        self._kind = ""
        self._text = ""
        self._said_at = 0.0
        self._pause = AGAIN_SECONDS
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def heard(self) -> None:
        """Something came."""
        self._heard_at = time.monotonic()

    def over(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events, each of which counts as heard; once there is text, only trouble is told."""
        for event in events:
            self.heard()
            self._speaking = self._speaking or isinstance(event, Token)
            yield event

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        pause = SILENCE_SECONDS
        while not self._ended.wait(pause):
            silent = time.monotonic() - self._heard_at
            pause = max(SILENCE_SECONDS - silent, 0.05)
            if silent >= SILENCE_SECONDS:
                self._tell(*self._look())
                pause = LOOK_SECONDS

    def _look(self) -> tuple[str, str]:
        """What to say, and the same without what changes all the time."""
        try:
            if self._job_id is not None:
                place = self._producer.place(self._job_id)
                calm = self._speaking and not place.troubled
                return ("", "") if calm else (place.told(), place.kind)
            way = hindrance(self._producer.status(), self._model)
        except QueueUnavailable:
            text = "the server cannot be reached; trying again"
            return text, text
        except MlxqError:
            return "", ""  # whoever waits meets it too, and says so
        if way:
            return way, without_figures(way)
        return ("a worker is up: the work goes on", "well") if self._kind else ("", "")

    def _tell(self, text: str, kind: str) -> None:
        now = time.monotonic()
        if not text or self._ended.is_set() or self._say is None:
            return
        if kind != self._kind:
            self._pause = AGAIN_SECONDS
        elif text == self._text or now < self._said_at + self._pause:
            return
        else:
            self._pause = min(2 * self._pause, LONGEST_SECONDS)
        self._kind, self._text, self._said_at = kind, text, now
        self._say(f"\n{text}" if self._speaking and sys.stdout.isatty() else text)

"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import redis

from mlxq_producer.base import BaseProducer, Ids
from mlxq_producer.connection import address, check_client, connect
from mlxq_producer.dead import DeadLetter
from mlxq_producer.operations import CancelOutcome
from mlxq_producer.place import Place
from mlxq_producer.queue_status import QueueStatus
from mlxq_producer.steps import Steps
from mlxq_producer.submission import JobLike
from mlxq_producer.sync_runner import Runner
from mlxq_schemas import DEFAULT_QUEUE, Event, Result

T = TypeVar("T")


class Producer(BaseProducer):
    """Submits jobs to a queue and reads what becomes of them.

    ::

        with Producer(queue="captions") as producer:
            job_id = producer.submit(prompt="What is in the picture?", images=["cat.png"])
            print(producer.result(job_id, wait=60).text)

    Args:
        url: The Redis server, in a form of :mod:`mlxq_schemas.url`; default ``MLXQ_REDIS_URL``,
            else ``redis://127.0.0.1:6379/0``.
        queue: Name of the queue.
        client: A Redis client to use instead of ``url``; it stays open after ``close``.
        inline_media: Send the bytes of local files along, once per content. False sends their
            absolute paths, for workers that see the same disk.
        max_depth: Refuse jobs with ``QueueFull`` while the queue holds this many; 0 never does.
        result_ttl: Seconds for which the result of a job that is cancelled here is kept.
        media_ttl: Seconds for which inlined media are kept after their last use.

    Every method raises ``QueueUnavailable`` when the server cannot be reached. May be shared by
    threads.
    """

    def __init__(
        self,
        url: str | None = None,
        queue: str = DEFAULT_QUEUE,
        *,
        client: redis.Redis | None = None,
        inline_media: bool = True,
        max_depth: int = 0,
        result_ttl: float = 86400,
        media_ttl: float = 86400,
    ) -> None:
        super().__init__(queue, inline_media, max_depth, result_ttl, media_ttl)
        self._owned = client is None
        self._client = connect(url, queue) if client is None else client
        check_client(self._client)

    @property
    def where(self) -> str:
        """Host and port of the server (or its socket), without user or password."""
        return address(self._client)

    def submit(self, job: JobLike | None = None, /, **fields: Any) -> str:
        """Queue a job; returns its id.

        Give a :class:`Job`, or its fields: ``prompt``, ``images``, ``messages``, ``id`` ...;
        sampling fields (``max_tokens``, ``temperature`` ...) may stand among them. A medium is a
        path, a URL, bytes, or a PIL image. A local file that cannot be read fails its job later,
        with code ``media_not_found``. The same id with the same job is accepted once.

        Raises:
            JobError: nothing a worker could do: ``EmptyPrompt``, ``Unsupported``, ``InvalidJob``.
            Conflict: the id stands for another job.
            QueueFull: ``max_depth`` is reached.
            RedisFull: the server is at its memory limit.
        """
        return self._run(self._submit(job, fields))

    def submit_many(self, jobs: Iterable[JobLike], *, window: int = 256) -> list[str]:
        """Queue jobs, ``window`` of them at a time; returns their ids in order.

        ``jobs`` may be a generator: no more than a window of it is held. Jobs that are refused
        do not stop the others; at the end they raise :class:`SubmitErrors`.
        """
        return self._run(self._submit_many(jobs, window))

    def map(
        self,
        jobs: Iterable[JobLike],
        *,
        window: int = 64,
        ordered: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Iterator[Result]:
        """The results of jobs without end, ``window`` of which are in flight at most.

        ``jobs`` may be a generator of any length: it is read as results come. They come in the
        order of the jobs, or as they are ready if not ``ordered``. A job that failed or was
        refused is a result too: look at ``ok``. While the queue is full it is waited for.
        ``check`` is called several times a second; what it raises ends the iteration.

        Raises ``Conflict`` for an id that is in the window twice.
        """
        return self._results(self._map(jobs, window, ordered, check))

    def result(self, job_id: str, wait: float | None = 0) -> Result:
        """The result of a job, waited for up to ``wait`` seconds (None: for ever).

        Raises ``UnknownJob``, ``WaitTimeout`` if it has not ended, ``Expired`` if its result is
        gone. A failed job has a result too: look at ``ok``, ``code`` and ``message``.
        """
        return self._run(self._result(job_id, wait))

    def follow(
        self,
        job_id: str,
        *,
        from_seq: int = 0,
        timeout: float | None = None,
        wait_for_job: bool = False,
    ) -> Iterator[Event]:
        """The events of a job from ``from_seq`` on, past ones and live ones, to the last.

        They come in order without gap or repeat, also over a broken connection.

        Raises:
            UnknownJob: no such job; with ``wait_for_job`` it is waited for instead.
            WaitTimeout: the job did not end within ``timeout`` seconds.
            Expired: the events and the result of the job are gone.
        """
        return self._iterate({job_id: from_seq}, timeout, wait_for_job)

    def follow_many(
        self, job_ids: Iterable[str], *, timeout: float | None = None, wait_for_job: bool = False
    ) -> Iterator[Event]:
        """The events of several jobs over one subscription, each job's in order."""
        return self._iterate(dict.fromkeys(job_ids, 0), timeout, wait_for_job)

    def cancel(self, job_id: str) -> CancelOutcome:
        """Cancel a job: ``cancelled`` (it waited or was delayed), ``asked`` (its worker will end
        it) or ``ended`` (too late). Raises ``UnknownJob``.
        """
        return self._run(self._cancel(job_id))

    def dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[DeadLetter]:
        """The dead letters, the oldest first: of these jobs, with this code, older than so many
        seconds; without arguments all.
        """
        return self._run(self._dead(ids, code, older_than))

    def retry_dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[str]:
        """Send dead jobs again, chosen as by :meth:`dead`; returns the ids of those sent.

        Their text begins anew and their attempts are counted anew; who follows them from the
        start sees both lives. A job whose record is gone (TTL) cannot be sent again; where media
        are gone, :class:`RetryErrors` says so in the end.
        """
        return self._run(self._retry_dead(ids, code, older_than))

    def drop_dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[DeadLetter]:
        """Drop dead letters, chosen as by :meth:`dead`, with all that is kept of their jobs."""
        return self._run(self._drop_dead(ids, code, older_than))

    def now(self) -> float:
        """The server's time, in unix seconds: what ``not_before`` and ``deadline`` are told by."""
        return self._run(self._now())

    def status(self) -> QueueStatus:
        """Counts of the queue, its workers and its server."""
        return self._run(self._status())

    def place(self, job_id: str) -> Place:
        """Where a job stands, and in words (``told()``) what it waits for."""
        return self._run(self._place(job_id))

    def close(self) -> None:
        """Close the connections that this producer opened."""
        if self._owned:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        return Runner(self._client).run(steps)

    def _iterate(
        self, starts: dict[str, int], timeout: float | None, wait_for_job: bool
    ) -> Iterator[Event]:
        return Runner(self._client).iterate(self._follow(starts, timeout, wait_for_job))

    def _results(self, steps: Steps[None]) -> Iterator[Result]:
        for item in Runner(self._client).iterate(steps):
            assert isinstance(item, Result)  # noqa: S101 - for the type checker: a window's steps
            yield item

"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import redis.asyncio

from mlxq_producer.async_channels import AsyncChannels
from mlxq_producer.async_runner import AsyncRunner, Calls
from mlxq_producer.base import BaseProducer, Ids
from mlxq_producer.connection import check_client, connect_async
from mlxq_producer.dead import DeadLetter
from mlxq_producer.operations import CancelOutcome
from mlxq_producer.place import Place
from mlxq_producer.queue_status import QueueStatus
from mlxq_producer.steps import Steps
from mlxq_producer.submission import JobLike
from mlxq_schemas import DEFAULT_QUEUE, Event, Result

T = TypeVar("T")


class AsyncProducer(BaseProducer):
    """:class:`Producer` for asyncio: same arguments, same methods, same errors.

    ::

        async with AsyncProducer(queue="captions") as producer:
            job_id = await producer.submit(prompt="What is in it?", images=["cat.png"])
            async for event in producer.follow(job_id):
                ...
    """

    def __init__(
        self,
        url: str | None = None,
        queue: str = DEFAULT_QUEUE,
        *,
        client: redis.asyncio.Redis | None = None,
        inline_media: bool = True,
        max_depth: int = 0,
        result_ttl: float = 86400,
        media_ttl: float = 86400,
    ) -> None:
        super().__init__(queue, inline_media, max_depth, result_ttl, media_ttl)
        self._owned = client is None
        self._client = connect_async(url, queue) if client is None else client
        check_client(self._client)
        self._calls = Calls()
        self._channels: tuple[asyncio.AbstractEventLoop, AsyncChannels] | None = None

    async def submit(self, job: JobLike | None = None, /, **fields: Any) -> str:
        """See :meth:`Producer.submit`; local files are read in a thread."""
        return await self._run(self._submit(job, fields))

    async def submit_many(self, jobs: Iterable[JobLike], *, window: int = 256) -> list[str]:
        """See :meth:`Producer.submit_many`."""
        return await self._run(self._submit_many(jobs, window))

    def map(
        self,
        jobs: Iterable[JobLike],
        *,
        window: int = 64,
        ordered: bool = True,
        check: Callable[[], None] | None = None,
    ) -> AsyncIterator[Result]:
        """See :meth:`Producer.map`; ``jobs`` is read, and ``check`` called, in a thread.

        ::

            async for result in producer.map({"prompt": p} for p in prompts):
                print(result.text)
        """
        return self._results(self._map(jobs, window, ordered, check))

    async def result(self, job_id: str, wait: float | None = 0) -> Result:
        """See :meth:`Producer.result`."""
        return await self._run(self._result(job_id, wait))

    def follow(
        self,
        job_id: str,
        *,
        from_seq: int = 0,
        timeout: float | None = None,
        wait_for_job: bool = False,
    ) -> AsyncIterator[Event]:
        """See :meth:`Producer.follow`."""
        return self._iterate({job_id: from_seq}, timeout, wait_for_job)

    def follow_many(
        self, job_ids: Iterable[str], *, timeout: float | None = None, wait_for_job: bool = False
    ) -> AsyncIterator[Event]:
        """See :meth:`Producer.follow_many`."""
        return self._iterate(dict.fromkeys(job_ids, 0), timeout, wait_for_job)

    async def cancel(self, job_id: str) -> CancelOutcome:
        """See :meth:`Producer.cancel`."""
        return await self._run(self._cancel(job_id))

    async def dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[DeadLetter]:
        """See :meth:`Producer.dead`."""
        return await self._run(self._dead(ids, code, older_than))

    async def retry_dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[str]:
        """See :meth:`Producer.retry_dead`."""
        return await self._run(self._retry_dead(ids, code, older_than))

    async def drop_dead(
        self, ids: Ids = None, *, code: str | None = None, older_than: float | None = None
    ) -> list[DeadLetter]:
        """See :meth:`Producer.drop_dead`."""
        return await self._run(self._drop_dead(ids, code, older_than))

    async def now(self) -> float:
        """The server's time, in unix seconds: what ``not_before`` and ``deadline`` are told by."""
        return await self._run(self._now())

    async def status(self) -> QueueStatus:
        """See :meth:`Producer.status`."""
        return await self._run(self._status())

    async def place(self, job_id: str) -> Place:
        """See :meth:`Producer.place`."""
        return await self._run(self._place(job_id))

    async def close(self) -> None:
        """Close the connections that this producer opened; who still follows hears that, and
        commands that have begun end first."""
        self._calls.close()
        if self._channels is not None and self._channels[0] is asyncio.get_running_loop():
            await self._channels[1].close()
        await self._calls.end()
        if self._owned:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _runner(self) -> AsyncRunner:
        return AsyncRunner(self._client, self._heard, self._calls)

    def _heard(self) -> AsyncChannels:
        """The channels of all readers in this event loop. Raises :class:`QueueError`."""
        self._calls.check()
        loop = asyncio.get_running_loop()
        if self._channels is None or self._channels[0] is not loop:
            self._channels = loop, AsyncChannels(self._client)
        return self._channels[1]

    async def _run(self, steps: Steps[T]) -> T:
        return await self._runner().run(steps)

    def _iterate(
        self, starts: dict[str, int], timeout: float | None, wait_for_job: bool
    ) -> AsyncIterator[Event]:
        return self._runner().iterate(self._follow(starts, timeout, wait_for_job))

    async def _results(self, steps: Steps[None]) -> AsyncIterator[Result]:
        async for item in self._runner().iterate(steps):
            assert isinstance(item, Result)  # noqa: S101 - for the type checker: a window's steps
            yield item

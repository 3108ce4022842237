"""Carries out the steps of operations with an asyncio Redis client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
import redis.asyncio

from mlxq_producer.async_channels import AsyncChannels, Subscription
from mlxq_producer.connection import address, is_sharded, unavailable
from mlxq_producer.steps import Call, Listen, Sleep, Step, Steps, Subscribe, Work, resume
from mlxq_schemas import BaseEvent, Event
from mlxq_schemas.errors import MlxqError, QueueError
from mlxq_schemas.scripts import sharded

T = TypeVar("T")


class Calls:
    """Commands under way for one client. None begins once it is closed."""

    def __init__(self) -> None:
        self._running = 0
        self._over: asyncio.Event | None = None
        self._closed = False

    @contextmanager
    def running(self) -> Generator[None]:
        """Around commands. Raises :class:`QueueError` if the client is closed."""
        self.check()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._over is not None and not self._running:
                self._over.set()

    def check(self) -> None:
        if self._closed:
            raise QueueError("the producer was closed: use an open one")

    def close(self) -> None:
        """Let none begin any more."""
        self._closed = True

    async def end(self) -> None:
        """Returns when none is under way; those that have begun end as they would."""
        if self._running:
            self._over = asyncio.Event()
            await self._over.wait()


class AsyncRunner:
    """Runs one operation at a time; ``channels`` and ``calls`` are those of all operations of the
    client."""

    def __init__(
        self, client: redis.asyncio.Redis, channels: Callable[[], AsyncChannels], calls: Calls
    ) -> None:
        self._client = client
        self._channels = channels
        self._calls = calls
        self._sharded = is_sharded(client)
        self._subscription: tuple[AsyncChannels, Subscription] | None = None

    async def run(self, steps: Steps[T]) -> T:
        """The operation's result; its events are dropped."""
        try:
            step = next(steps)
            while True:
                step = resume(steps, await self._perform(step))
        except StopIteration as stop:
            return stop.value
        finally:
            await self._unsubscribe()

    async def iterate(self, steps: Steps[None]) -> AsyncIterator[Event]:
        """The operation's events, as they come."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, BaseEvent):
                    yield step
                step = resume(steps, await self._perform(step))
        except StopIteration:
            return
        finally:
            await self._unsubscribe()

    async def _perform(self, step: Step | Event) -> object:
        try:
            match step:
                case Call(commands):
                    return await self._call(commands)
                case Subscribe(channels):
                    return await self._subscribe(channels)
                case Listen(seconds):
                    return await self._listen(seconds)
                case Sleep(seconds):
                    return await asyncio.sleep(seconds)
                case Work():
                    pass
                case _:
                    return None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._calls.check()
            return unavailable(error, address(self._client))
        try:
            return await asyncio.to_thread(step.function)
        except MlxqError as error:
            return error

    async def _call(self, commands: Any) -> list[Any]:
        if not commands:
            return []
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        with self._calls.running():
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in map(sharded, commands) if self._sharded else commands:
                    pipeline.execute_command(*command)
                replies = await pipeline.execute(raise_on_error=False)
        if task and task.cancelling() > asked:
            raise asyncio.CancelledError  # lost by wait_for of Python 3.11, which redis-py uses
        return replies

    async def _subscribe(self, channels: Any) -> None:
        await self._unsubscribe()
        heard = self._channels()
        self._subscription = heard, await heard.subscribe(channels)

    async def _listen(self, seconds: float) -> bytes | None:
        if self._subscription is None:
            raise redis.ConnectionError("not subscribed")
        return await self._subscription[1].get(seconds)

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            (heard, subscription), self._subscription = self._subscription, None
            await heard.leave(subscription)

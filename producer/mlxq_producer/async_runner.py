"""Carries out the steps of operations with an asyncio Redis client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.client import PubSub

from mlxq_producer.connection import TIMEOUTS, address, is_sharded, unavailable
from mlxq_producer.steps import Call, Listen, Sleep, Step, Steps, Subscribe, Work, resume
from mlxq_schemas import BaseEvent, Event
from mlxq_schemas.errors import MlxqError
from mlxq_schemas.scripts import sharded

T = TypeVar("T")

_CONFIRMED = ("subscribe", "ssubscribe")
_BROKEN_OFF = (*_CONFIRMED, "sunsubscribe")


class AsyncRunner:
    """Runs one operation at a time; each gets a subscription of its own if it asks for one."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._sharded = is_sharded(client)
        self._pubsub: PubSub | None = None

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
            return unavailable(error, address(self._client))
        try:
            return await asyncio.to_thread(step.function)
        except MlxqError as error:
            return error

    async def _call(self, commands: Any) -> list[Any]:
        if not commands:
            return []
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in map(sharded, commands) if self._sharded else commands:
                pipeline.execute_command(*command)
            return await pipeline.execute(raise_on_error=False)

    async def _subscribe(self, channels: Any) -> None:
        await self._unsubscribe()
        pubsub = self._pubsub = self._client.pubsub()
        await (pubsub.ssubscribe if self._sharded else pubsub.subscribe)(*channels)
        unconfirmed = len(channels)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TIMEOUTS["socket_timeout"]
        while unconfirmed:
            message = await pubsub.get_message(timeout=max(deadline - loop.time(), 0.0))
            if message is not None and message["type"] in _CONFIRMED:
                unconfirmed -= 1
            elif message is None and loop.time() >= deadline:
                raise redis.TimeoutError("no confirmation of a subscription")

    async def _listen(self, seconds: float) -> bytes | None:
        if self._pubsub is None:
            raise redis.ConnectionError("not subscribed")
        message = await self._pubsub.get_message(timeout=seconds)
        if message is not None and message["type"] in _BROKEN_OFF:
            # redis-py has silently connected anew, or the slot went to another node: what was
            # sent in between is lost.
            raise redis.ConnectionError("the subscription broke off")
        data = message["data"] if message is not None else None
        return data if isinstance(data, bytes) else None

    async def _unsubscribe(self) -> None:
        if self._pubsub is not None:
            pubsub, self._pubsub = self._pubsub, None
            await pubsub.aclose()

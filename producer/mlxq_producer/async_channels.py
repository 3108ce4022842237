"""One connection on which all readers of an asyncio client hear their channels."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mlxq_producer.connection import TIMEOUTS, is_sharded

BUFFER: Final = 1000
"""Messages kept for a reader; one that is slower than that reads the stream instead."""
MISSED: Final = b""
"""Stands for messages that were dropped: it is no event, so a reader looks at the stream."""
PAUSES: Final = (0.05, 0.2, 0.5)
"""Seconds before a subscription that broke off at once is tried again."""
QUIET: Final = 5.0
"""Seconds of silence after which the server is asked, and in which it must answer."""


class Subscription:
    """What one reader hears; made by :meth:`AsyncChannels.subscribe`."""

    def __init__(self, channels: Sequence[bytes]) -> None:
        self.channels = channels
        self._messages: deque[bytes] = deque()
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, message: bytes) -> None:
        """A message has come."""
        if len(self._messages) >= BUFFER:
            self._messages.clear()
            message = MISSED
        self._messages.append(message)
        self._changed.set()

    def break_off(self, error: Exception) -> None:
        """No more will come."""
        self._error = error
        self._changed.set()

    async def get(self, seconds: float) -> bytes | None:
        """The next message; None after ``seconds``. Raises what has broken the subscription."""
        if not self._messages and self._error is None:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        if self._error is not None:
            raise redis.ConnectionError(f"the subscription broke off: {self._error}")
        return self._messages.popleft() if self._messages else None


class AsyncChannels:
    """All subscriptions of one client, over one connection that is there while anybody listens.

    Belongs to the event loop in which it is first used. The connection is never made anew in
    silence: when it breaks, every reader hears of it, since messages are lost.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._sharded = is_sharded(client)
        self._lock = asyncio.Lock()
        self._readers: dict[bytes, set[Subscription]] = defaultdict(set)
        self._line: _Line | None = None
        self._closed = False

    async def subscribe(self, channels: Sequence[str]) -> Subscription:
        """Listen to channels; returns once the server has confirmed. Raises redis errors."""
        names = [channel.encode() for channel in channels]
        for pause in PAUSES:
            try:
                return await self._subscribe(names)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                await asyncio.sleep(pause)
        return await self._subscribe(names)

    async def _subscribe(self, names: Sequence[bytes]) -> Subscription:
        subscription = Subscription(names)
        try:
            async with asyncio.timeout(TIMEOUTS["socket_timeout"]):
                async with self._lock:
                    line = self._line or await self._open()
                    for name in names:
                        self._readers[name].add(subscription)
                    confirmed = await line.subscribe(names)
                await asyncio.gather(*map(asyncio.shield, confirmed))
        except TimeoutError:
            late = redis.TimeoutError("no confirmation of a subscription")
            self._break(late)
            raise late from None
        except BaseException:
            await self.leave(subscription)
            raise
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        """A reader listens no more."""
        for name in subscription.channels:
            readers = self._readers.get(name, set())
            readers.discard(subscription)
            if not readers:
                self._readers.pop(name, None)
        if not self._readers:
            await self._hang_up()
            return
        async with self._lock:
            alone = [name for name in subscription.channels if name not in self._readers]
            if self._line is not None:
                with suppress(redis.RedisError, OSError):  # readers hear it from the connection
                    await self._line.unsubscribe(alone)

    async def close(self) -> None:
        """Give the connection up for good; who still listens hears that."""
        self._closed = True
        async with self._lock:  # one may just be opened
            await self._hang_up()

    async def _hang_up(self) -> None:
        line = self._line
        self._break(redis.ConnectionError("the client was closed"))
        if line is not None:
            await line.close()

    async def _open(self) -> _Line:
        """A connection of its own: those of the client may all be in use."""
        if self._closed:
            raise redis.ConnectionError("the client was closed")
        pool = self._client.connection_pool
        # In the older protocol all that comes is a message; a broken connection stays broken; and
        # who waits has limits of its own.
        known: dict[str, Any] = pool.connection_kwargs
        settings = {name: value for name, value in known.items() if "maint_" not in name}
        settings |= {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": None}
        connection: Any = pool.connection_class(**settings)
        await connection.connect()
        self._line = _Line(connection, self._sharded, self._hear, self._broken)
        return self._line

    def _hear(self, name: bytes, message: bytes) -> None:
        for reader in tuple(self._readers.get(name, ())):
            reader.put(message)

    def _broken(self, line: _Line, error: Exception) -> None:
        if line is self._line:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """All who listen hear that messages are lost; who comes next opens a new connection."""
        line, self._line = self._line, None
        readers = {reader for several in self._readers.values() for reader in several}
        self._readers.clear()
        for reader in readers:
            reader.break_off(error)
        if line is not None:
            line.give_up(error)


class _Line:
    """One connection: what was asked of the server on it, and what the server confirmed.

    ``hear`` gets the name of a channel and a message, ``broken`` the error that ends the line.
    """

    def __init__(
        self,
        connection: Any,
        sharded: bool,
        hear: Callable[[bytes, bytes], None],
        broken: Callable[[_Line, Exception], None],
    ) -> None:
        self._connection = connection
        self._sharded = sharded
        self._hear = hear
        self._broken = broken
        self._subscribed: set[bytes] = set()
        self._asked: dict[bytes, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._left: Counter[bytes] = Counter()
        self._task = asyncio.create_task(self._listen(), name="mlxq-channels")

    async def subscribe(self, names: Sequence[bytes]) -> list[asyncio.Future[None]]:
        """Ask for the channels that were not asked for yet; what confirms all of them."""
        new = [name for name in names if name not in self._subscribed]
        loop = asyncio.get_running_loop()
        for name in new:
            self._asked[name].append(loop.create_future())
        self._subscribed.update(new)
        await self._send("SUBSCRIBE", new)
        return [self._asked[name][-1] for name in names if self._asked.get(name)]

    async def unsubscribe(self, names: Sequence[bytes]) -> None:
        left = [name for name in names if name in self._subscribed]
        self._subscribed.difference_update(left)
        self._left.update(left)
        await self._send("UNSUBSCRIBE", left)

    def give_up(self, error: Exception) -> None:
        """No more is heard; who waits for a confirmation gets the error."""
        for wait in [wait for waits in self._asked.values() for wait in waits]:
            if not wait.done():
                wait.set_exception(error)
                wait.exception()  # nobody may wait for it any more
        self._asked.clear()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    async def close(self) -> None:
        """Disconnect."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._connection.disconnect()

    async def _send(self, command: str, names: Sequence[bytes]) -> None:
        if not names:
            return
        if not self._connection.is_connected:  # it would connect anew in silence
            raise redis.ConnectionError("the connection was closed")
        name = f"S{command}" if self._sharded else command
        try:
            await self._connection.send_command(name, *names, check_health=False)
        except AttributeError:  # redis-py's way to say that it was closed meanwhile
            raise redis.ConnectionError("the connection was closed") from None

    async def _listen(self) -> None:
        connection, asked = self._connection, False
        try:
            while True:
                message = await connection.read_response(timeout=QUIET, disconnect_on_error=False)
                if message is not None:
                    self._take(*message)
                elif asked:
                    raise redis.TimeoutError("the server is silent")
                else:
                    await connection.send_command("PING", check_health=False)
                asked = message is None
        except Exception as error:  # noqa: BLE001 - readers wait: whatever it is, they hear it
            self._broken(self, error)
        finally:
            await connection.disconnect(nowait=True)

    def _take(self, kind: bytes, name: bytes, data: Any = None) -> None:
        match kind:
            case b"message" | b"smessage":
                self._hear(name, data)
            case b"subscribe" | b"ssubscribe":
                waits = self._asked[name]
                wait = waits.popleft()
                if not waits:
                    del self._asked[name]
                if not wait.done():
                    wait.set_result(None)
            case b"pong":
                pass
            case b"unsubscribe" | b"sunsubscribe" if self._left[name]:
                self._left[name] -= 1
                if not self._left[name]:
                    del self._left[name]
            case _:
                raise redis.ConnectionError("the slot has gone to another node")

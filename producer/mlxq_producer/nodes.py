"""Connections to the node that serves a queue, found anew for each of them.

A node that says that it does not serve the queue (any more) has its connection closed: to the
caller a failover looks like a broken connection, which everything here can bear.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import redis
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from mlxq_schemas.finding import Nodes, Search
from mlxq_schemas.url import Address

ELSEWHERE: Final = (ReadOnlyError, AskError, TryAgainError, ClusterDownError)
"""The node is no primary now, or its slot is at another one or on its way there."""


class NodeConnection(Connection):
    """A connection to whichever node serves the queue when it is made."""

    def __init__(self, *, nodes: Nodes, **settings: Any) -> None:
        self._nodes = nodes
        super().__init__(**settings)

    def _connect(self) -> Any:
        search = self._nodes.search()
        if search is not None:
            self.host, self.port = self._find(search)
        return super()._connect()

    def _find(self, search: Search) -> Address:
        try:
            address, command = next(search)
            while True:
                address, command = search.send(self._ask(address, command))
        except StopIteration as found:
            return found.value
        except ConnectionError as error:
            raise redis.ConnectionError(str(error)) from error

    def _ask(self, address: Address, command: tuple[str, ...]) -> Any:
        kind = SSLConnection if self._nodes.url.tls else Connection
        once = Retry(NoBackoff(), 0)
        asked = kind(host=address[0], port=address[1], retry=once, **self._nodes.asking())
        try:
            asked.connect()
            asked.send_command(*command)
            return asked.read_response()
        except AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, ResponseError) as error:
            return error
        finally:
            asked.disconnect()

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health=check_health)
        if self._nodes.checks_role:
            self.send_command("ROLE", check_health=False)
            _check_role(self.read_response(), self._host_error())

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except ELSEWHERE as error:
            self.disconnect()
            _not_here(error, self._host_error())


class TlsNodeConnection(NodeConnection, SSLConnection):
    """The same over TLS."""


class AsyncNodeConnection(AsyncConnection):
    """The same for asyncio."""

    def __init__(self, *, nodes: Nodes, **settings: Any) -> None:
        self._nodes = nodes
        super().__init__(**settings)

    async def _connect(self) -> None:
        search = self._nodes.search()
        if search is not None:
            self.host, self.port = await self._find(search)
        await super()._connect()

    async def _find(self, search: Search) -> Address:
        try:
            address, command = next(search)
            while True:
                address, command = search.send(await self._ask(address, command))
        except StopIteration as found:
            return found.value
        except ConnectionError as error:
            raise redis.ConnectionError(str(error)) from error

    async def _ask(self, address: Address, command: tuple[str, ...]) -> Any:
        kind = AsyncSSLConnection if self._nodes.url.tls else AsyncConnection
        once = AsyncRetry(NoBackoff(), 0)
        asked = kind(host=address[0], port=address[1], retry=once, **self._nodes.asking())
        try:
            await asked.connect()
            await asked.send_command(*command)
            return await asked.read_response()
        except AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, ResponseError) as error:
            return error
        finally:
            await asked.disconnect()

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health=check_health)
        if self._nodes.checks_role:
            await self.send_command("ROLE", check_health=False)
            _check_role(await self.read_response(), self._host_error())

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)
        except ELSEWHERE as error:
            await self.disconnect()
            _not_here(error, self._host_error())


class AsyncTlsNodeConnection(AsyncNodeConnection, AsyncSSLConnection):
    """The same over TLS."""


def _check_role(reply: Any, where: str) -> None:
    if reply[0] not in (b"master", "master"):
        raise redis.ConnectionError(f"{where} is not the primary (yet)")


def _not_here(error: Exception, where: str) -> NoReturn:
    code = getattr(error, "status_code", None) or type(error).__name__
    raise redis.ConnectionError(
        f"{where} does not serve this queue now ({code} {error})"
    ) from error

"""What the tests of the queue duties share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Keys
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.link import Link
from tcp_proxy import TcpProxy


@pytest.fixture
def keys(queue: str) -> Keys:
    return Keys(queue)


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client as the worker has it."""
    client = connect(server.url, "test")
    yield client
    client.close()


@pytest.fixture
def link(client: redis.Redis) -> Iterator[Link]:
    link = Link(client)
    yield link
    link.close()


@pytest.fixture
def other(redis_client: redis.Redis, queue: str) -> LuaWorker:
    """A producer and a second worker, made of the scripts alone."""
    return LuaWorker(redis_client, queue, "other")


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def shaky(proxy: TcpProxy) -> Iterator[Link]:
    """A link through the proxy."""
    client = connect(proxy.url, "shaky")
    link = Link(client)
    yield link
    link.close()
    client.close()

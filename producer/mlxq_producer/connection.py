"""How a producer reaches its Redis server, and what it says when it cannot."""

from __future__ import annotations

import os
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.connection import UnixDomainSocketConnection
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, MaxConnectionsError
from redis.retry import Retry

from mlxq_producer.nodes import (
    AsyncNodeConnection,
    AsyncTlsNodeConnection,
    NodeConnection,
    TlsNodeConnection,
)
from mlxq_schemas import DEFAULT_QUEUE, Keys
from mlxq_schemas.errors import ConfigError, QueueUnavailable
from mlxq_schemas.finding import Nodes
from mlxq_schemas.url import ServerUrl, parse_url

URL_VARIABLE: Final = "MLXQ_REDIS_URL"
QUEUE_VARIABLE: Final = "MLXQ_QUEUE"
DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

TIMEOUTS: Final[dict[str, Any]] = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0}
"""Seconds. A producer never blocks in a command, so an answer is due at once."""

_CONNECTIONS = 16
"""Most connections of an asyncio client for commands; who comes later waits for one."""
_TURN = 60.0
"""Seconds that a command waits for one of these."""
_UNBOUNDED = 2**31

_BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=0.5)
_RETRIES = 3
"""Every command of a producer may be repeated: its scripts are idempotent."""


def resolve_url(url: str | None) -> str:
    """``url``, else the environment's, else the server of this machine."""
    return url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def connect(url: str | None, queue: str = DEFAULT_QUEUE) -> redis.Redis:
    """A client of the node that serves ``queue``; connects at its first command.

    Raises :class:`ConfigError`.
    """
    server = parse_url(resolve_url(url))
    settings = _settings(server, queue)
    settings |= {"connection_class": _class(server), "retry": Retry(_BACKOFF, _RETRIES)}
    # One for each thread that follows: bounded by the threads, and by nothing else.
    return redis.Redis.from_pool(redis.ConnectionPool(max_connections=_UNBOUNDED, **settings))


def connect_async(url: str | None, queue: str = DEFAULT_QUEUE) -> redis.asyncio.Redis:
    """The same for asyncio."""
    server = parse_url(resolve_url(url))
    settings = _settings(server, queue)
    settings |= {"connection_class": _async_class(server), "retry": AsyncRetry(_BACKOFF, _RETRIES)}
    pool = redis.asyncio.BlockingConnectionPool(
        max_connections=_CONNECTIONS, timeout=_TURN, **settings
    )
    return redis.asyncio.Redis.from_pool(pool)


def _class(server: ServerUrl) -> type[Any]:
    if server.kind == "unix":
        return UnixDomainSocketConnection
    return TlsNodeConnection if server.tls else NodeConnection


def _async_class(server: ServerUrl) -> type[Any]:
    if server.kind == "unix":
        return AsyncUnixDomainSocketConnection
    return AsyncTlsNodeConnection if server.tls else AsyncNodeConnection


def _settings(server: ServerUrl, queue: str) -> dict[str, Any]:
    common = {**server.options, **TIMEOUTS}
    if server.kind == "unix":
        return {**common, "path": server.path}
    host, port = server.nodes[0]
    nodes = Nodes(server, key_slot(Keys(queue).prefix.encode()))
    return {**common, "host": host, "port": port, "nodes": nodes}


def check_client(client: redis.Redis | redis.asyncio.Redis) -> None:
    """Refuse a client that would turn our bytes into text, or that is not one of one node."""
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"client is a {type(client).__name__}; for a cluster or sentinels give their URL: "
            "redis+cluster://HOST:PORT, redis+sentinel://HOST:PORT/SERVICE"
        )
    if client.connection_pool.get_encoder().decode_responses:
        raise ConfigError(
            "the Redis client has decode_responses=True, but events are bytes: leave it off"
        )


def address(client: redis.Redis | redis.asyncio.Redis) -> str:
    """Where a client connects to, without user or password."""
    settings = client.connection_pool.connection_kwargs
    nodes: Nodes | None = settings.get("nodes")
    if nodes is not None:
        return nodes.url.where
    if "path" in settings:
        return str(settings["path"])
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def is_sharded(client: redis.Redis | redis.asyncio.Redis) -> bool:
    """True if messages go by SPUBLISH and SSUBSCRIBE."""
    nodes: Nodes | None = client.connection_pool.connection_kwargs.get("nodes")
    return nodes is not None and nodes.sharded


def unavailable(error: Exception, where: str) -> QueueUnavailable:
    """The error for a server at ``where`` that cannot be reached, or not be talked to."""
    if isinstance(error, AuthenticationError):
        return QueueUnavailable(
            f"the Redis server at {where} refused the login: check user and password in the URL"
        )
    if isinstance(error, MaxConnectionsError):
        return QueueUnavailable(
            f"all connections of the Redis client to {where} are in use: give a client with more "
            "max_connections or with a BlockingConnectionPool, or follow jobs by follow_many"
        )
    reason = str(error).rstrip(".") or type(error).__name__
    return QueueUnavailable(
        f"no answer from Redis at {where} ({reason}): start a server there (mlxq server), "
        f"or give another with --redis-url, url= or {URL_VARIABLE}"
    )

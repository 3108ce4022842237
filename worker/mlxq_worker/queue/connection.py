"""How a worker reaches its Redis server, and what it asks of it before it takes jobs."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from mlxq_schemas import DEFAULT_QUEUE, Keys
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import ConfigError, EvictionPolicy, QueueUnavailable
from mlxq_schemas.finding import Nodes
from mlxq_schemas.url import parse_url
from mlxq_worker.queue.nodes import NodeConnection, TlsNodeConnection

log = logging.getLogger(__name__)

SOCKET_TIMEOUT: Final = 5.0
"""Seconds without an answer after which a connection counts as broken."""
SAFE_POLICY: Final = "noeviction"
LOADING_PATIENCE: Final = 60.0
"""Seconds that a worker waits at its start for a server that loads its data."""
MIN_VERSION: Final = (6, 2)
MIN_CLUSTER_VERSION: Final = (7, 0)
"""The first with sharded pub/sub."""


def connect(url: str, name: str, queue: str = DEFAULT_QUEUE) -> redis.Redis:
    """A client of the node that serves ``queue``. It connects at its first command and never
    repeats one by itself.

    redis-py would send a command again whose reply was lost: a second XADD or XREADGROUP doubles
    or strands entries. ``name`` shows in ``CLIENT LIST``. Raises :class:`ConfigError`.
    """
    server = parse_url(url)
    settings: dict[str, Any] = {
        **server.options,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT,
        "socket_connect_timeout": SOCKET_TIMEOUT,
        "client_name": f"mlxq-worker-{name}",
        "protocol": 2,  # one shape of replies, whatever the server speaks
    }
    if server.kind == "unix":
        settings |= {"connection_class": UnixDomainSocketConnection, "path": server.path}
    else:
        kind = TlsNodeConnection if server.tls else NodeConnection
        host, port = server.nodes[0]
        nodes = Nodes(server, key_slot(Keys(queue).prefix.encode()))
        settings |= {"connection_class": kind, "host": host, "port": port, "nodes": nodes}
    return redis.Redis.from_pool(redis.ConnectionPool(**settings))


def address(client: redis.Redis) -> str:
    """Where a client connects to, without user or password."""
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    nodes: Nodes | None = settings.get("nodes")
    return str(settings["path"]) if nodes is None else nodes.url.where


def is_sharded(client: redis.Redis) -> bool:
    """True if messages go by SPUBLISH and SSUBSCRIBE."""
    nodes: Nodes | None = client.connection_pool.connection_kwargs.get("nodes")
    return nodes is not None and nodes.sharded


def check_server(client: redis.Redis) -> float:
    """Refuse a server on which jobs could be lost; the time there, in unix seconds.

    Raises :class:`QueueUnavailable` (no answer, or too old), :class:`EvictionPolicy`, or
    :class:`ConfigError` for a node of a cluster that the URL does not call one, and for a user
    who may not ask for the time.
    """
    where = address(client)
    try:
        _ping(client)
        info = _info(client)
        policy = info.get("maxmemory_policy") or _configured_policy(client)
        now = _server_time(client, where)
    except NoPermissionError as error:
        raise ConfigError(
            f"the user of this worker lacks a right on the Redis server at {where} "
            f"({reason(error)}): give it the rights of a worker in docs/operations.md"
        ) from error
    except AuthenticationError as error:
        raise QueueUnavailable(
            f"the Redis server at {where} refused the login: check user and password in the URL"
        ) from error
    except RedisError as error:
        raise QueueUnavailable(
            f"no answer from Redis at {where} ({reason(error)}): start a server there, "
            "or give another with --redis-url or MLXQ_REDIS_URL"
        ) from error
    # Valkey has its own name for it.
    clustered = "cluster" in (info.get("redis_mode"), info.get("server_mode"))
    if clustered and not is_sharded(client):
        raise ConfigError(
            f"the Redis server at {where} is a node of a cluster: write redis+cluster://HOST:PORT"
        )
    _check_version(info, where, MIN_CLUSTER_VERSION if clustered else MIN_VERSION)
    _check_policy(policy, where)
    return now


def reason(error: BaseException) -> str:
    """A short cause for a log line."""
    return str(error).rstrip(".") or type(error).__name__


def _ping(client: redis.Redis) -> None:
    """Ask for a sign of life; a server that still reads its data from disk is waited for."""
    end = time.monotonic() + LOADING_PATIENCE
    while True:
        try:
            client.ping()
        except BusyLoadingError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


def _info(client: redis.Redis) -> dict[str, Any]:
    try:
        return client.info()
    except ResponseError:
        return {}  # ACLs often hide it


def _check_version(info: dict[str, Any], where: str, least: tuple[int, int]) -> None:
    version = str(info.get("redis_version", ""))
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        log.warning("server version hidden; at least 6.2 is needed", extra={"server": where})
        return
    if (major, minor) < least:
        raise QueueUnavailable(
            f"the Redis server at {where} is version {version}; "
            f"mlxq needs {least[0]}.{least[1]} or newer"
        )


def _server_time(client: redis.Redis, where: str) -> float:
    try:
        return seconds_of(client.time())
    except NoPermissionError as error:
        raise ConfigError(
            f"the user of this worker may not run TIME on the Redis server at {where}: add +time "
            "to the user's ACL, as in docs/operations.md; the queue's times are the server's"
        ) from error


def _configured_policy(client: redis.Redis) -> str | None:
    try:
        found: Any = client.config_get("maxmemory-policy")
    except ResponseError:
        return None
    return next((text(value) for value in found.values()), None)


def _check_policy(policy: str | None, where: str) -> None:
    if policy is None:
        log.warning(
            "eviction policy hidden; make sure that maxmemory-policy is noeviction",
            extra={"server": where},
        )
    elif policy != SAFE_POLICY:
        raise EvictionPolicy(
            f"the Redis server at {where} has maxmemory-policy {policy} and may evict jobs: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )


def text(value: object) -> str:
    """A reply of the server as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

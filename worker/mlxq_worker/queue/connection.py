"""How a worker reaches its Redis server, and what it asks of it before it takes jobs."""

from __future__ import annotations

import logging
import time
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.retry import Retry

from mlxq_schemas.errors import ConfigError, EvictionPolicy, QueueUnavailable

log = logging.getLogger(__name__)

SOCKET_TIMEOUT: Final = 5.0
"""Seconds without an answer after which a connection counts as broken."""
LOADING_PATIENCE: Final = 60.0
"""Seconds that a worker waits at its start for a server that loads its data."""
MIN_VERSION: Final = (6, 2)

_SCHEMES = ("redis", "rediss", "unix")


def connect(url: str, name: str) -> redis.Redis:
    """A client that connects at its first command and never repeats one by itself.

    redis-py would send a command again whose reply was lost: a second XADD or XREADGROUP doubles
    or strands entries. ``name`` shows in ``CLIENT LIST``. Raises :class:`ConfigError`.
    """
    if urlsplit(url).scheme not in _SCHEMES:
        raise _bad_url()
    try:
        return redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=SOCKET_TIMEOUT,
            socket_keepalive=True,
            client_name=f"mlxq-worker-{name}",
            protocol=2,  # one shape of replies, whatever the server speaks
            decode_responses=False,
        )
    except (ValueError, TypeError) as error:
        raise _bad_url() from error


def address(client: redis.Redis) -> str:
    """Where a client connects to, without user or password."""
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    if "path" in settings:
        return str(settings["path"])
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def check_server(client: redis.Redis) -> None:
    """Refuse a server on which jobs could be lost.

    Raises :class:`QueueUnavailable` (no answer, or older than 6.2) or :class:`EvictionPolicy`.
    """
    where = address(client)
    try:
        _ping(client)
    except AuthenticationError as error:
        raise QueueUnavailable(
            f"the Redis server at {where} refused the login: check user and password in the URL"
        ) from error
    except RedisError as error:
        raise QueueUnavailable(
            f"no answer from Redis at {where} ({reason(error)}): start a server there, "
            "or give another with --redis-url or MLXQ_REDIS_URL"
        ) from error
    info = _info(client)
    _check_version(info, where)
    _check_policy(info.get("maxmemory_policy") or _configured_policy(client), where)


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


def _check_version(info: dict[str, Any], where: str) -> None:
    version = str(info.get("redis_version", ""))
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        log.warning("server version hidden; at least 6.2 is needed", extra={"server": where})
        return
    if (major, minor) < MIN_VERSION:
        raise QueueUnavailable(
            f"the Redis server at {where} is version {version}; mlxq needs 6.2 or newer"
        )


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
    elif policy != "noeviction":
        raise EvictionPolicy(
            f"the Redis server at {where} has maxmemory-policy {policy} and may evict jobs: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )


def text(value: object) -> str:
    """A reply of the server as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _bad_url() -> ConfigError:
    # The URL itself may hold a password, so the message does not repeat it.
    return ConfigError(
        "the Redis URL is not valid: write redis://HOST:PORT/DB, "
        "rediss://USER:PASSWORD@HOST:PORT/DB or unix:///PATH"
    )

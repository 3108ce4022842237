"""How a producer reaches its Redis server, and what it says when it cannot."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from mlxq_schemas.errors import ConfigError, QueueUnavailable

URL_VARIABLE: Final = "MLXQ_REDIS_URL"
DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

TIMEOUTS: Final[dict[str, Any]] = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0}
"""Seconds. A producer never blocks in a command, so an answer is due at once."""

_SCHEMES = ("redis", "rediss", "unix")
_BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=0.5)
_RETRIES = 3
"""Every command of a producer may be repeated: its scripts are idempotent."""


def resolve_url(url: str | None) -> str:
    """``url``, else the environment's, else the server of this machine."""
    return url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def connect(url: str | None) -> redis.Redis:
    """A client for ``url``; connects at its first command. Raises :class:`ConfigError`."""
    url = _checked(resolve_url(url))
    try:
        return redis.Redis.from_url(url, retry=Retry(_BACKOFF, _RETRIES), **TIMEOUTS)
    except (ValueError, TypeError) as error:
        raise _bad_url() from error


def connect_async(url: str | None) -> redis.asyncio.Redis:
    """The same for asyncio."""
    url = _checked(resolve_url(url))
    try:
        return redis.asyncio.Redis.from_url(url, retry=AsyncRetry(_BACKOFF, _RETRIES), **TIMEOUTS)
    except (ValueError, TypeError) as error:
        raise _bad_url() from error


def check_client(client: redis.Redis | redis.asyncio.Redis) -> None:
    """Refuse a client that would turn our bytes into text."""
    if client.connection_pool.get_encoder().decode_responses:
        raise ConfigError(
            "the Redis client has decode_responses=True, but events are bytes: leave it off"
        )


def address(client: redis.Redis | redis.asyncio.Redis) -> str:
    """Where a client connects to, without user or password."""
    settings = client.connection_pool.connection_kwargs
    if "path" in settings:
        return str(settings["path"])
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def unavailable(error: Exception, where: str) -> QueueUnavailable:
    """The error for a server at ``where`` that cannot be reached, or not be talked to."""
    if isinstance(error, AuthenticationError):
        return QueueUnavailable(
            f"the Redis server at {where} refused the login: check user and password in the URL"
        )
    reason = str(error).rstrip(".") or type(error).__name__
    return QueueUnavailable(
        f"no answer from Redis at {where} ({reason}): start a server there, "
        f"or give another with --redis-url, url= or {URL_VARIABLE}"
    )


def _checked(url: str) -> str:
    if urlsplit(url).scheme not in _SCHEMES:
        raise _bad_url()
    return url


def _bad_url() -> ConfigError:
    # The URL itself may hold a password, so the message does not repeat it.
    return ConfigError(
        "the Redis URL is not valid: write redis://HOST:PORT/DB, "
        "rediss://USER:PASSWORD@HOST:PORT/DB or unix:///PATH"
    )

"""Whether a worker's user may do what the scripts do, asked before it takes jobs."""

from __future__ import annotations

import redis
from redis.exceptions import NoPermissionError

from mlxq_schemas import Keys
from mlxq_schemas.errors import ConfigError, QueueUnavailable
from mlxq_worker.queue.connection import address, reason
from mlxq_worker.queue.link import LINK_ERRORS, Link, run_script


def check_rights(client: redis.Redis, keys: Keys) -> None:
    """Refuse a user for whom a script would end in its middle. Redis 6.2 cannot say.

    Raises :class:`ConfigError`, and :class:`QueueUnavailable` if the connection breaks.
    """
    link = Link(client)
    try:
        link.one(*run_script("rights", [keys.job("any")], [keys.tokens("any")]))
    except NoPermissionError as error:
        raise ConfigError(
            f"the user of this worker lacks a right on the Redis server at {address(client)} "
            f"({reason(error)})"
        ) from error
    except LINK_ERRORS as error:
        raise QueueUnavailable(
            f"no answer from Redis at {address(client)} ({reason(error)})"
        ) from error
    finally:
        link.close()

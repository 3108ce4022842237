"""Fixtures that every test may use: a real server, a client, a queue that leaves no litter."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis
from hypothesis import HealthCheck, settings
from redis.backoff import NoBackoff
from redis.retry import Retry

import pinned  # noqa: F401 - before anything computes
from mlxq_schemas import PRIORITIES, Keys

if TYPE_CHECKING:
    from mlxq_producer.embedded import EmbeddedServer

# A shared machine may be slow for a moment; that is no finding. In continuous integration every
# run draws the same examples, so that a failure is the change's.
settings.register_profile(
    "mlxq",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mlxq")

# A shell's background jobs ignore Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

UNENDED = {None, b"queued", b"delayed", b"running"}
NO_TTL = -1


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """A real server on a free loopback port, for the whole run; it has ``url`` and ``port``."""
    from mlxq_producer.embedded import EmbeddedServer

    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def redis_client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client that answers in bytes and never repeats a command by itself."""
    client = redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))
    yield client
    client.close()


@pytest.fixture
def queue(redis_client: redis.Redis) -> Iterator[str]:
    """A fresh queue name. The test fails if a key of the queue stays for ever without a reason."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    keys = sorted(redis_client.scan_iter(f"{Keys(name).prefix}:*", count=1000))
    litter = [key.decode() for key in keys if _is_litter(redis_client, Keys(name), key.decode())]
    if keys:
        redis_client.delete(*keys)
    if litter:
        pytest.fail(f"keys without TTL that nothing will end: {', '.join(litter)}")


def _is_litter(client: redis.Redis, keys: Keys, key: str) -> bool:
    permanent = {*keys.all_jobs(), keys.delayed, keys.results, keys.dead, keys.workers}
    if client.ttl(key) != NO_TTL or key in permanent:
        return False
    for kind in ("job", "events"):
        start = f"{keys.prefix}:{kind}:"
        if key.startswith(start):
            return not _will_end(client, keys, key.removeprefix(start))
    return True


def _will_end(client: redis.Redis, keys: Keys, job_id: str) -> bool:
    """True while the job has not ended and an entry leads a worker to it."""
    if client.hget(keys.job(job_id), "state") not in UNENDED:
        return False
    if client.zscore(keys.delayed, job_id) is not None:
        return True
    entries = (client.xrange(keys.jobs(priority)) for priority in PRIORITIES)
    return any(fields.get(b"id") == job_id.encode() for rows in entries for _, fields in rows)

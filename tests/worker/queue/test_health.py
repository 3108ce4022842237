"""The row of a live worker."""

from __future__ import annotations

import time

import pytest
import redis

from mlxq_schemas import Keys
from mlxq_schemas.clock import ServerClock, seconds_of
from mlxq_worker.queue.health import TTL, Health
from mlxq_worker.queue.link import Link


def test_the_row_lives_while_it_is_renewed_and_goes_at_the_end(
    link: Link, keys: Keys, redis_client: redis.Redis
) -> None:
    clock = ServerClock()
    clock.learn(5.0)
    redis_client.zadd(keys.workers, {"long-dead": time.time() - 10 * TTL})
    health = Health(link, keys, "w", lambda: {"model": "m", "rows": 3}, clock)
    health.step()
    row = redis_client.hgetall(keys.worker("w"))
    assert (row[b"model"], row[b"rows"]) == (b"m", b"3")
    assert float(row[b"heartbeat"]) == pytest.approx(seconds_of(redis_client.time()), abs=60)
    assert clock.now() == pytest.approx(float(row[b"heartbeat"]), abs=60)
    assert 0 < redis_client.ttl(keys.worker("w")) <= TTL
    assert redis_client.zrange(keys.workers, 0, -1) == [b"w"]
    health.remove()
    assert not redis_client.exists(keys.worker("w"), keys.workers)

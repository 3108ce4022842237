"""Inlined media."""

from __future__ import annotations

import redis

from mlxq_schemas import Keys
from mlxq_worker.queue.blobs import TTL, BlobStore


def test_use_prolongs_a_blobs_life_and_never_shortens_it(
    client: redis.Redis, keys: Keys, redis_client: redis.Redis
) -> None:
    redis_client.set(keys.blob("short"), b"s", ex=60)
    redis_client.set(keys.blob("long"), b"l", ex=10 * TTL)
    store = BlobStore(client, keys)
    assert [store.read(name) for name in ("short", "long", "none")] == [b"s", b"l", None]
    assert redis_client.ttl(keys.blob("short")) > 60
    assert redis_client.ttl(keys.blob("long")) > TTL

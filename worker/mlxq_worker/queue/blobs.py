"""Inlined media: bytes stored once by content, kept while they are used."""

from __future__ import annotations

from typing import Any, Final

import redis

from mlxq_schemas import Keys

TTL: Final = 86_400
"""Seconds that a blob lives at least after its last use."""


class BlobStore:
    """Reads blobs; any thread may."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def read(self, sha256: str) -> bytes | None:
        """The bytes stored under a hash, or None; their TTL is renewed, never shortened."""
        key = self._keys.blob(sha256)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(key)
            pipe.ttl(key)
            found: list[Any] = pipe.execute()
        data, left = found
        if data is not None and 0 <= left < TTL:
            self._client.expire(key, TTL)
        return data

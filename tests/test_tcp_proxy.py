"""The proxy does to a connection what it is told, once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tcp_proxy import TcpProxy

BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError)


@pytest.fixture
def proxy(server: object) -> Iterator[TcpProxy]:
    with TcpProxy(server.url) as running:  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def through(proxy: TcpProxy) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=30)
    yield client
    client.close()


@pytest.fixture
def key(redis_client: redis.Redis) -> Iterator[str]:
    yield "proxied"
    redis_client.delete("proxied")


def test_a_swallowed_reply_was_given(
    proxy: TcpProxy, through: redis.Redis, redis_client: redis.Redis, key: str
) -> None:
    proxy.swallow("INCR")
    with pytest.raises(BROKEN):
        through.incr(key)
    assert (redis_client.get(key), proxy.swallowed) == (b"1", 1)
    assert through.incr(key) == 2


def test_of_a_request_cut_in_the_middle_nothing_is_done(
    proxy: TcpProxy, through: redis.Redis, redis_client: redis.Redis, key: str
) -> None:
    proxy.cut_request("INCR")
    with pytest.raises(BROKEN):
        through.incr(key)
    assert (redis_client.get(key), proxy.cut_requests) == (None, 1)
    assert through.incr(key) == 1


def test_of_several_requests_cut_in_the_middle_the_first_are_done(
    proxy: TcpProxy, through: redis.Redis, redis_client: redis.Redis, key: str
) -> None:
    proxy.cut_request("INCR")
    pipeline = through.pipeline(transaction=False)
    for _ in range(5):
        pipeline.incr(key)
    with pytest.raises(BROKEN):
        pipeline.execute()
    assert redis_client.get(key) == b"2"


def test_half_a_reply_is_none(
    proxy: TcpProxy, through: redis.Redis, redis_client: redis.Redis, key: str
) -> None:
    redis_client.set(key, "x" * 1000)
    proxy.cut_reply("GET")
    with pytest.raises(BROKEN):
        through.get(key)
    assert proxy.cut_replies == 1
    assert through.get(key) == b"x" * 1000


def test_a_slow_link_loses_nothing_and_takes_its_time(
    proxy: TcpProxy, through: redis.Redis, redis_client: redis.Redis, key: str
) -> None:
    redis_client.set(key, "x" * 10_000)
    through.ping()
    proxy.slow(rate=50_000, seconds=30.0)
    began = time.monotonic()
    assert proxy.late
    assert through.get(key) == b"x" * 10_000
    assert time.monotonic() - began >= 0.15  # never sooner, however fast the machine is
    proxy.slow(rate=50_000, seconds=0.0)
    assert not proxy.late

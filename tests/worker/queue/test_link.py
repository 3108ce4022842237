"""One connection: replies in order, nothing repeated, reconnects counted."""

from __future__ import annotations

import pytest
import redis

from mlxq_schemas import Keys
from mlxq_worker.queue.link import LINK_ERRORS, Link, run_script
from tcp_proxy import TcpProxy


def test_an_error_reply_stands_in_its_place(link: Link, keys: Keys) -> None:
    key = keys.result("a")
    first, error, last = link.call(("SET", key, "x", "EX", 60), ("LPUSH", key, "y"), ("GET", key))
    assert (first, last) == (b"OK", b"x")
    assert isinstance(error, redis.ResponseError)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        link.one("LPUSH", key, "y")


def test_an_unknown_script_is_loaded(link: Link, keys: Keys, redis_client: redis.Redis) -> None:
    redis_client.script_flush()
    command = run_script("append", [keys.job("a"), keys.events("a")], [1, keys.tokens("a")])
    assert link.call(("PING",), command, ("PING",)) == [b"PONG", -1, b"PONG"]


def test_a_lost_reply_raises_and_the_next_call_reconnects(
    shaky: Link, proxy: TcpProxy, keys: Keys, redis_client: redis.Redis
) -> None:
    assert shaky.open() == 1
    proxy.swallow("INCR")
    with pytest.raises(LINK_ERRORS):
        shaky.one("INCR", keys.result("n"))
    redis_client.expire(keys.result("n"), 60)
    assert redis_client.get(keys.result("n")) == b"1"  # done once, not repeated
    assert shaky.one("GET", keys.result("n")) == b"1"
    assert shaky.generation == 2

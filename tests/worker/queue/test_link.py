"""One connection: replies in order, nothing repeated, reconnects counted."""

from __future__ import annotations

import pytest
import redis

from mlxq_schemas import Keys
from mlxq_worker.queue import link as module
from mlxq_worker.queue.link import LINK_ERRORS, Link, run_script
from tcp_proxy import TcpProxy
from worker_process import eventually


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


def test_a_connection_closed_while_idle_is_replaced_before_anything_is_sent(
    shaky: Link, proxy: TcpProxy, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", 0.0)
    assert shaky.one("PING") == b"PONG"
    for generation in (2, 3):
        assert proxy.cut() == 1
        eventually(shaky._was_closed, "the close has arrived")
        assert shaky.open() == generation
        assert shaky.one("GET", keys.result("n")) is None
    assert shaky.generation == 3


def test_one_that_breaks_in_use_still_raises(shaky: Link, proxy: TcpProxy) -> None:
    assert shaky.one("PING") == b"PONG"
    shaky.open()
    proxy.cut()
    with pytest.raises(LINK_ERRORS):
        shaky.one("PING")
    assert shaky.one("PING") == b"PONG"

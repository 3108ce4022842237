"""A server whose eviction policy changes while a worker runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis

from mlxq_producer.embedded import EmbeddedServer
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.eviction import PERIOD, EvictionWatch
from mlxq_worker.queue.link import Link


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def admin(own_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url) as client:
        yield client
        client.config_set("maxmemory-policy", "noeviction")


def watch(server: EmbeddedServer, user: str = "") -> tuple[EvictionWatch, list[int]]:
    woken: list[int] = []
    client = connect(server.url.replace("redis://", f"redis://{user}"), "test")
    return EvictionWatch(Link(client), lambda: woken.append(1)), woken


@pytest.mark.parametrize("rights", [["+@all"], ["+@all", "-info"], ["+@all", "-config"]])
def test_a_policy_that_evicts_is_noticed_told_once_and_so_is_its_end(
    own_server: EmbeddedServer,
    admin: redis.Redis,
    rights: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.acl_setuser("u", enabled=True, reset=True, passwords=["+pw"], commands=rights, keys=["*"])
    watched, woken = watch(own_server, "u:pw@")
    with caplog.at_level(logging.WARNING):
        assert watched.step() == PERIOD
        assert (watched.safe, watched.problem, caplog.records) == (True, "", [])
        admin.config_set("maxmemory-policy", "allkeys-lru")
        watched.step()
        watched.step()
        assert (watched.safe, watched.problem) == (False, "eviction_policy")
        admin.config_set("maxmemory-policy", "noeviction")
        watched.step()
        watched.step()
    assert (watched.safe, woken) == (True, [1])
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_policy_that_is_hidden_is_no_trouble(
    own_server: EmbeddedServer, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    rights = ["+@all", "-info", "-config"]
    admin.acl_setuser("u", enabled=True, reset=True, passwords=["+pw"], commands=rights, keys=["*"])
    admin.config_set("maxmemory-policy", "allkeys-lru")
    watched, _ = watch(own_server, "u:pw@")
    watched.step()
    assert watched.safe
    assert caplog.records == []

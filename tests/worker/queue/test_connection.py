"""How a worker reaches its server, and which servers it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis

from mlxq_schemas.errors import ConfigError, EvictionPolicy, QueueUnavailable
from mlxq_worker.queue.connection import address, check_server, connect


def test_the_client_repeats_nothing(client: redis.Redis) -> None:
    retry = client.connection_pool.connection_kwargs["retry"]
    assert retry.get_retries() == 0
    assert client.client_getname() == "mlxq-worker-test"


@pytest.mark.parametrize("url", ["http://host/0", "", "host:6379", "redis://u:geheim@host:x/0"])
def test_a_bad_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url, "test")
    assert "geheim" not in str(caught.value)


def test_no_server_is_named_without_its_password() -> None:
    with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1 ") as caught:
        check_server(connect("redis://user:geheim@127.0.0.1:1/0", "test"))
    assert "geheim" not in str(caught.value)


def test_a_fit_server_passes(client: redis.Redis) -> None:
    check_server(client)
    assert address(client).startswith("127.0.0.1:")


@pytest.fixture
def evicting(redis_client: redis.Redis) -> Iterator[None]:
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    yield
    redis_client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.usefixtures("evicting")
def test_a_server_that_may_evict_jobs_is_refused(client: redis.Redis) -> None:
    with pytest.raises(EvictionPolicy, match="allkeys-lru"):
        check_server(client)


def test_an_old_server_is_refused(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "info", lambda: {"redis_version": "6.0.16"})
    with pytest.raises(QueueUnavailable, match=r"6\.0\.16"):
        check_server(client)


def test_a_server_that_hides_its_settings_gives_warnings(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hidden(*_: object) -> None:
        raise redis.ResponseError("unknown command")

    monkeypatch.setattr(client, "info", hidden)
    monkeypatch.setattr(client, "config_get", hidden)
    with caplog.at_level(logging.WARNING):
        check_server(client)
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "server version hidden",
        "eviction policy hidden",
    ]

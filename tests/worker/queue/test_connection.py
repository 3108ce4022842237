"""How a worker reaches its server, and which servers it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis

from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Keys
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import ConfigError, EvictionPolicy, QueueUnavailable
from mlxq_worker.queue.connection import address, check_server, connect
from mlxq_worker.queue.rights import check_rights
from tcp_proxy import TcpProxy


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


def test_a_user_who_may_not_ask_for_the_time_is_told_what_to_add(
    server: EmbeddedServer, redis_client: redis.Redis
) -> None:
    redis_client.acl_setuser(
        "late", enabled=True, passwords=["+pw"], keys="*", commands=["+@all", "-time"]
    )
    try:
        client = connect(server.url.replace("://", "://late:pw@"), "test")
        with pytest.raises(ConfigError, match=r"add \+time"):
            check_server(client)
        client.close()
    finally:
        redis_client.acl_deluser("late")


def test_the_servers_time_comes_with_the_check(client: redis.Redis) -> None:
    assert check_server(client) == pytest.approx(seconds_of(client.time()), abs=60)


@pytest.mark.parametrize("command", ["PING", "INFO", "TIME"])
def test_a_connection_that_breaks_during_the_check_is_no_server(
    proxy: TcpProxy, redis_client: redis.Redis, command: str
) -> None:
    client = connect(proxy.url, "test")
    proxy.cut_request(command)
    with pytest.raises(QueueUnavailable, match="no answer"):
        check_server(client)
    client.close()


def look(client: redis.Redis, keys: Keys) -> None:
    """What a worker asks before it takes jobs."""
    check_server(client)
    check_rights(client, keys)


@pytest.mark.parametrize("lacks", ["publish", "set", "xack", "channels", "ping"])
def test_a_user_for_whom_scripts_would_end_in_their_middle_is_refused(
    server: EmbeddedServer, redis_client: redis.Redis, keys: Keys, lacks: str
) -> None:
    commands = ["+@all"] if lacks == "channels" else ["+@all", f"-{lacks}"]
    channels = [] if lacks == "channels" else ["*"]
    redis_client.acl_setuser(
        "half",
        enabled=True,
        passwords=["+pw"],
        keys="*",
        commands=commands,
        channels=channels,
        reset_channels=True,
    )
    client = connect(server.url.replace("://", "://half:pw@"), "test")
    try:
        with pytest.raises(ConfigError, match=r"docs/operations\.md"):
            look(client, keys)
    finally:
        client.close()
        redis_client.acl_deluser("half")


def test_a_user_with_all_rights_passes(client: redis.Redis, keys: Keys) -> None:
    check_rights(client, keys)

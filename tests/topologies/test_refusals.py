"""URLs that lead to the wrong place say so, and nothing of their password."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mlxq_producer import AsyncProducer, Producer
from mlxq_schemas.errors import ConfigError, QueueUnavailable
from mlxq_worker.queue.connection import check_server, connect
from topologies.process import ADMIN, Server, free_port
from topologies.sites import Site, owner

EVERY_KIND = [("redis", "tls"), ("valkey", "sentinel"), ("valkey", "cluster")]


def plain_url(server: Server) -> str:
    return f"redis://{ADMIN['username']}:{ADMIN['password']}@127.0.0.1:{server.port}"


@pytest.mark.parametrize("site", EVERY_KIND, ids="-".join, indirect=True)
def test_a_wrong_password(site: Site) -> None:
    url = site.form.format(login="producer:geheim")
    with Producer(url) as producer, pytest.raises(QueueUnavailable, match="login") as caught:
        producer.submit(prompt="x")
    with pytest.raises(QueueUnavailable, match="login") as other:
        check_server(connect(url, "test"))

    async def try_it() -> None:
        async with AsyncProducer(url) as producer:
            await producer.submit(prompt="x")

    with pytest.raises(QueueUnavailable) as third:
        asyncio.run(try_it())
    assert "geheim" not in f"{caught.value} {other.value} {third.value}"


@pytest.mark.parametrize("site", [("valkey", "cluster")], ids="-".join, indirect=True)
def test_a_node_of_a_cluster_is_no_single_server(site: Site) -> None:
    url = plain_url(site.servers[(owner() + 1) % 3])
    with pytest.raises(ConfigError, match=r"redis\+cluster://"):
        check_server(connect(url, "test"))
    with Producer(url) as producer, pytest.raises(QueueUnavailable, match="MOVED"):
        producer.submit(prompt="x")


@pytest.mark.parametrize("site", [("valkey", "sentinel")], ids="-".join, indirect=True)
def test_a_single_server_is_no_cluster_and_no_sentinel(site: Site) -> None:
    server = site.servers[0]
    for url, words in (
        (plain_url(server).replace("redis:", "redis+cluster:"), "cluster support disabled"),
        (plain_url(server).replace("redis:", "redis+sentinel:") + "/main", "login"),
        (site.url("producer").replace("/main/", "/other/"), "knows no service other"),
        (f"redis+cluster://127.0.0.1:{free_port()}", "no node of the cluster"),
    ):
        with Producer(url) as producer, pytest.raises(QueueUnavailable, match=words):
            producer.submit(prompt="x")


@pytest.mark.parametrize("site", [("valkey", "sentinel")], ids="-".join, indirect=True)
def test_a_replica_takes_no_jobs(site: Site) -> None:
    replica = next(server for server in site.servers if server is not site.primary())
    with (
        Producer(plain_url(replica) + "/2") as producer,
        pytest.raises(QueueUnavailable, match="READONLY"),
    ):
        producer.submit(prompt="x")


@pytest.mark.parametrize("client", [object(), "redis://"])
def test_a_client_of_another_kind(client: Any) -> None:
    with pytest.raises(ConfigError, match=r"redis\+cluster://"):
        Producer(client=client)

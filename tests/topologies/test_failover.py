"""A primary dies, or a queue's slot moves: jobs go on at its successor."""

from __future__ import annotations

import contextlib

import pytest
import redis

from mlxq_producer import Producer
from mlxq_producer.connection import key_slot
from mlxq_schemas import Keys
from mlxq_schemas.errors import QueueUnavailable
from topologies.conftest import StartWorker
from topologies.process import ADMIN, Server
from topologies.sites import Site, link_up, owner, wait_until
from topologies.stories import KEYS, check, submit, token_seen
from worker_process import PATIENCE

OPTIONS = ("--lease", "1.5", "--max-rows", "4")


def submit_soon(producer: Producer, job_id: str) -> None:
    """As a user would: the same id again until it is accepted."""

    def accepted() -> bool:
        with contextlib.suppress(QueueUnavailable):
            return producer.submit(id=job_id, prompt="after") == job_id
        return False

    wait_until(accepted, "a submit")


def kill_primary(site: Site) -> Server:
    """Kill the queue's server once its replica has all; returns it."""
    dead = site.primary()
    with dead.client() as client:
        assert client.wait(1, 10_000) == 1
    dead.kill()
    return dead


@pytest.mark.slow
@pytest.mark.parametrize(
    "site",
    [(name, kind) for name in ("valkey", "redis") for kind in ("sentinel", "cluster")],
    ids="-".join,
    indirect=True,
)
def test_jobs_go_on_at_the_replica_when_their_primary_dies(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(*OPTIONS, model="noop:0.02")
    texts = submit(producer, 4, length=200)
    token_seen(producer, "j0")
    dead = kill_primary(site)
    submit_soon(producer, "after")
    check(site, {**texts, "after": "after"})
    assert worker.process.poll() is None, worker.log
    assert site.primary() is not dead
    dead.start()  # it comes back as a replica, and nobody takes it for the primary
    wait_until(lambda: link_up(dead), "the old primary's return")
    check(site, submit(producer, 4, name="later"))


@pytest.mark.parametrize("site", [("valkey", "cluster")], ids="-".join, indirect=True)
def test_queues_lie_on_different_nodes(site: Site, start_worker: StartWorker) -> None:
    names = ["captions", *(f"q{i}" for i in range(50))]
    queues = {owner(name): name for name in reversed(names)}
    assert len(queues) == 3
    # The rights of the manual are for one queue each.
    start_worker("--queue", queues[owner("captions")])
    for node, queue in queues.items():
        if queue != "captions":
            start_worker("--queue", queue, "--redis-url", site.url("admin"))
        with Producer(site.url("admin"), queue) as producer:
            check(site, submit(producer, 5), queue)
        with site.servers[node].client() as client:
            found = {key.decode() for key in client.scan_iter("mlxq:*")}
        assert found
        assert all(key.startswith(Keys(queue).prefix) for key in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "site", [("valkey", "cluster"), ("redis", "cluster")], ids="-".join, indirect=True
)
def test_jobs_go_on_while_their_slot_moves(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(*OPTIONS, model="noop:0.02")
    texts = submit(producer, 4, length=200)
    token_seen(producer, "j0")
    source = site.primary()
    target = next(s for s in site.servers if s is not source and is_primary(s))
    for start, end in ((source, target), (target, source)):
        move_slot(site, start, end)
        submit_soon(producer, f"at-{end.port}")
        assert producer.result(f"at-{end.port}", wait=PATIENCE).ok
        assert site.primary() is end
    check(site, texts)
    assert worker.process.poll() is None, worker.log


def is_primary(server: Server) -> bool:
    with server.client() as client:
        return client.role()[0] in (b"master", "master")


def move_slot(site: Site, source: Server, target: Server) -> None:
    """What a reshard does: keys move one by one while the slot is open at both ends."""
    slot = key_slot(KEYS.prefix.encode())
    with source.client() as here, target.client() as there:
        here_id = here.execute_command("CLUSTER", "MYID").decode()
        there_id = there.execute_command("CLUSTER", "MYID").decode()
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", here_id)
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", there_id)
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 2):
            with contextlib.suppress(redis.ResponseError):  # a key that has ended meanwhile
                here.execute_command(
                    *("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000),
                    *("AUTH2", ADMIN["username"], ADMIN["password"], "KEYS", *keys),
                )
        there.execute_command("CLUSTER", "SETSLOT", slot, "NODE", there_id)
        here.execute_command("CLUSTER", "SETSLOT", slot, "NODE", there_id)

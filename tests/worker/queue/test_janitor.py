"""Names of workers that ended leave the consumer groups, and no entry with them."""

from __future__ import annotations

import logging
import time

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import GROUP, Job, Keys
from mlxq_worker.queue import janitor as module
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.intake import ensure_groups
from mlxq_worker.queue.janitor import Janitor
from mlxq_worker.queue.link import Link
from worker_process import eventually


@pytest.fixture
def names(redis_client: redis.Redis, keys: Keys, link: Link) -> Names:
    ensure_groups(link, keys.all_jobs())
    return Names(redis_client, keys)


class Names:
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    def add(self, *names: str) -> None:
        for name in names:
            for stream in self.keys.all_jobs():
                self.client.xgroup_createconsumer(stream, GROUP, name)

    def all(self) -> set[str]:
        streams = self.keys.all_jobs()
        rows = [row for s in streams for row in self.client.xinfo_consumers(s, GROUP)]
        return {row["name"].decode() for row in rows}


def test_names_long_gone_with_nothing_pending_go(
    link: Link, keys: Keys, names: Names, other: LuaWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", 0.02)
    names.add("gone1", "gone2", "live")
    other.submit(Job(id="a", prompt="p"))
    other.read()
    names.client.zadd(keys.workers, {"live": time.time() + 60})
    janitor = Janitor(link, keys, "w", lease=0.0)

    def tidy() -> bool:
        janitor.step()
        return names.all() == {"live", "other"}

    eventually(tidy, "only these are left")
    assert names.client.xpending(keys.jobs(), GROUP)["pending"] == 1


@pytest.mark.parametrize("lease", [30.0, 86_400.0])
def test_silence_of_less_than_an_hour_and_several_leases_is_not_long(
    link: Link, keys: Keys, names: Names, lease: float
) -> None:
    names.add("quiet")
    assert Janitor(link, keys, "w", lease).step() == module.PERIOD
    assert names.all() == {"quiet"}


def test_who_ends_takes_its_name_along_unless_jobs_are_pending(
    link: Link, keys: Keys, names: Names, other: LuaWorker
) -> None:
    names.add("w", "other")
    Janitor(link, keys, "w", 30.0).leave()
    assert names.all() == {"other"}
    other.submit(Job(id="a", prompt="p"))
    [(entry, job_id)] = other.read()
    Janitor(link, keys, "other", 30.0).leave()
    assert names.all() == {"other"}
    other.finish(job_id, other.claim(job_id, entry)[1], entry)


def test_no_group_and_no_stream_are_nothing(
    link: Link, keys: Keys, caplog: pytest.LogCaptureFixture, redis_client: redis.Redis
) -> None:
    redis_client.xadd(keys.jobs(), {"id": "a"})
    janitor = Janitor(link, keys, "w", 30.0)
    with caplog.at_level(logging.WARNING):
        janitor.step()
        janitor.leave()
    assert caplog.records == []


def test_rights_of_old_are_told_once(
    server: EmbeddedServer, keys: Keys, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"old-{keys.queue}"
    rights = ["+@all", "-xgroup|delconsumer", "-xinfo|consumers"]
    names.client.acl_setuser(
        user, enabled=True, passwords=["+pw"], commands=rights, keys=["*"], channels=["*"]
    )
    names.add("w")
    client = connect(server.url.replace("redis://", f"redis://{user}:pw@"), "test")
    try:
        janitor = Janitor(Link(client), keys, "w", 30.0)
        with caplog.at_level(logging.WARNING):
            assert janitor.step() == module.PERIOD
            janitor.leave()
    finally:
        client.close()
        names.client.acl_deluser(user)
    assert [record.message for record in caplog.records] == [
        "names of ended workers stay in the consumer groups"
    ]
    assert names.all() == {"w"}

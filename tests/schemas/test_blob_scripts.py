"""The scripts by which media live as long as the jobs that need them."""

from __future__ import annotations

import time

import msgpack
import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job
from mlxq_schemas.scripts import script

DAY = 86_400
ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


def keep(worker: LuaWorker, ttl: int, slack: int, until: dict[str, float]) -> list[int]:
    return worker.run("keep_blobs", list(map(worker.keys.blob, until)), ttl, slack, *until.values())


def left(worker: LuaWorker, sha: str) -> int:
    seconds = worker.client.ttl(worker.keys.blob(sha))
    assert isinstance(seconds, int)
    return seconds


@pytest.mark.parametrize(
    ("ttl", "later", "least"),
    [
        (3600, None, 3600),
        (3600, -9 * DAY, 3600),
        (3600, 0, DAY),
        (DAY, 3 * DAY, 4 * DAY),
        (30 * DAY, 3 * DAY, 30 * DAY),
    ],
)
def test_a_blob_lives_for_its_ttl_and_a_day_beyond_its_jobs_times(
    worker: LuaWorker, ttl: int, later: float | None, least: int
) -> None:
    worker.client.set(worker.keys.blob(ONE), b"1", ex=10)
    until = 0.0 if later is None else time.time() + later
    assert keep(worker, ttl, 0, {ONE: until}) == []
    assert least - 5 <= left(worker, ONE) <= least + 5


def test_a_life_is_never_cut_and_absurd_times_do_no_harm(worker: LuaWorker) -> None:
    for sha, ttl in ((ONE, 100 * DAY), (TWO, 10)):
        worker.client.set(worker.keys.blob(sha), b"1", ex=ttl)
    assert keep(worker, DAY, 0, {ONE: 0.0, "3" * 64: 0.0, TWO: 1e300}) == [2]
    assert left(worker, ONE) > 99 * DAY
    assert left(worker, TWO) > 365 * DAY
    worker.client.persist(worker.keys.blob(ONE))
    assert keep(worker, DAY, 0, {ONE: 0.0}) == []
    assert left(worker, ONE) == -1
    worker.client.delete(worker.keys.blob(ONE))


def test_slack_saves_writes(worker: LuaWorker) -> None:
    worker.client.set(worker.keys.blob(ONE), b"1", ex=DAY // 2 + 100)
    keep(worker, DAY, DAY // 2, {ONE: 0.0})
    assert left(worker, ONE) <= DAY // 2 + 100
    worker.client.expire(worker.keys.blob(ONE), DAY // 2 - 100)
    keep(worker, DAY, DAY // 2, {ONE: 0.0})
    assert left(worker, ONE) > DAY - 100


def test_rights_without_ttl_are_enough(worker: LuaWorker, server) -> None:
    name = f"old-{worker.queue}"
    rights = ["+@all", "-ttl"]
    worker.client.acl_setuser(
        name, enabled=True, passwords=["+pw"], commands=rights, keys=["*"], channels=["*"]
    )
    worker.client.set(worker.keys.blob(ONE), b"1", ex=10)
    try:
        with redis.Redis(port=server.port, username=name, password="pw") as old:
            names = [worker.keys.blob(sha) for sha in (ONE, TWO)]
            assert old.eval(script("keep_blobs"), 2, *names, DAY, 0, 0, 0) == [2]
    finally:
        worker.client.acl_deluser(name)
    assert left(worker, ONE) > DAY - 100


def blobs_of(worker: LuaWorker, *ids: str) -> list[bytes]:
    return worker.run("blobs_of", list(map(worker.keys.job, ids)))


def test_what_jobs_need_is_read_from_their_specs(worker: LuaWorker) -> None:
    images = [f"blob:{ONE}", "https://x/y", f"blob:{TWO}", f"blob:{ONE}", "blob:short"]
    worker.submit(Job.model_validate({"id": "a", "prompt": "p", "images": images}))
    worker.submit(Job(id="none", prompt="blob:"))
    by_hand = f'{{"prompt": "p", "images": ["blob:{TWO}"]}}'
    worker.client.hset(worker.keys.job("json"), "spec", by_hand)
    worker.client.hset(worker.keys.job("done"), mapping={"spec": by_hand, "state": "finished"})
    worker.client.hset(worker.keys.job("dead"), mapping={"spec": by_hand, "state": "failed"})
    worker.client.set(worker.keys.job("wrong"), "a string", ex=60)
    ids = ("a", "none", "json", "done", "dead", "gone", "wrong")
    found = dict(zip(ids, blobs_of(worker, *ids), strict=True))
    assert found.pop("a").decode().split() == [ONE, TWO]
    assert {i for i, shas in found.items() if shas} == {"json", "dead"}
    for job_id in ("json", "done", "dead"):
        worker.client.delete(worker.keys.job(job_id))


def test_large_specs_are_searched_once_and_not_all_at_a_time(worker: LuaWorker) -> None:
    ids = [f"j{n}" for n in range(4)]
    spec = msgpack.packb({"prompt": "x" * 5_000_000, "images": [f"blob:{ONE}"]})
    for job_id in ids:
        worker.client.hset(worker.keys.job(job_id), "spec", spec)
        worker.client.expire(worker.keys.job(job_id), 60)
    assert blobs_of(worker, *ids) == [ONE.encode()] * 2
    assert blobs_of(worker, *ids) == [ONE.encode()] * 4
    assert worker.client.hget(worker.keys.job("j0"), "blobs") == ONE.encode()


def test_a_name_goes_only_with_nothing_pending(worker: LuaWorker) -> None:
    stream = worker.keys.jobs()
    worker.submit(Job(id="a", prompt="p"))
    [(entry, _)] = worker.read()
    LuaWorker(worker.client, worker.queue, "idle").read()
    assert worker.run("dismiss", [stream], "workers", "w1", "idle", "never seen") == 2
    assert [row["name"] for row in worker.client.xinfo_consumers(stream, "workers")] == [b"w1"]
    worker.finish("a", worker.claim("a", entry)[1], entry)
    assert worker.run("dismiss", [stream], "workers", "w1") == 1
    assert worker.client.xinfo_consumers(stream, "workers") == []

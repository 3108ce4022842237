"""Media of jobs that wait, however they wait, are kept; those of others are not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job, Keys
from mlxq_worker.queue import blob_keeper as module
from mlxq_worker.queue.blob_keeper import BlobKeeper
from mlxq_worker.queue.blobs import TTL
from mlxq_worker.queue.link import Link


def sha(number: int) -> str:
    return f"{number:064x}"


class Store:
    """Jobs with a blob each, which lives for ten seconds more."""

    def __init__(self, client: redis.Redis, other: LuaWorker) -> None:
        self.client = client
        self.other = other
        self.count = 0

    def blob(self) -> str:
        self.count += 1
        self.client.set(self.other.keys.blob(sha(self.count)), b"x", ex=10)
        return f"blob:{sha(self.count)}"

    def job(self, **fields: object) -> Job:
        fields = {"prompt": "p", "images": [self.blob()], "id": f"j{self.count}", **fields}
        job = Job.model_validate(fields)
        self.other.submit(job)
        return job

    def kept(self) -> list[int]:
        """The blobs that live for about a day."""
        numbers = range(1, self.count + 1)
        keys = self.other.keys
        return [n for n in numbers if self.client.ttl(keys.blob(sha(n))) > TTL - 100]


@pytest.fixture
def store(redis_client: redis.Redis, other: LuaWorker) -> Store:
    return Store(redis_client, other)


@pytest.fixture
def keeper(link: Link, keys: Keys) -> Iterator[BlobKeeper]:
    yield BlobKeeper(link, keys, "w")
    link.close()


def go_round(keeper: BlobKeeper) -> int:
    """Steps until nothing is left to do for now."""
    for steps in range(1, 200):
        if keeper.step() > 1:
            return steps
    pytest.fail("the round has no end")


def test_every_way_of_waiting_counts(
    store: Store, keeper: BlobKeeper, redis_client: redis.Redis, keys: Keys
) -> None:
    other = store.other
    for priority in ("high", "normal", "low"):
        store.job(priority=priority)
    store.job(not_before=time.time() + 3600)
    redis_client.hset(keys.job("hand"), "spec", f'{{"prompt":"p","images":["{store.blob()}"]}}')
    redis_client.xadd(keys.jobs("low"), {"id": "hand"})
    redis_client.xadd(keys.jobs("low"), {"no": "id"})
    redis_client.xadd(keys.jobs("low"), {"id": "no such job"})
    assert store.count == 5
    dead, done = store.job(), store.job()
    taken = {job_id: entry for entry, job_id in other.read(9)}
    for job in (dead, done):
        epoch = other.claim(job.id, taken[job.id])[1]
        other.finish(job.id, epoch, taken[job.id], code="timeout" if job is dead else "")
    go_round(keeper)
    assert store.kept() == [1, 2, 3, 4, 5, 6]
    assert redis_client.ttl(keys.keeper) > 0


def test_pages_leave_none_out(
    store: Store, keeper: BlobKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    now = time.time()
    for offset in (9, *[5] * 8, 7, 7):
        store.job(not_before=now + 1000 * offset)
    for _ in range(7):
        store.job()
    assert go_round(keeper) > 7
    assert store.kept() == list(range(1, store.count + 1))


def test_one_worker_goes_round_at_a_time_and_another_when_it_died(
    store: Store, keeper: BlobKeeper, client: redis.Redis, keys: Keys, redis_client: redis.Redis
) -> None:
    keeper.step()
    store.job()
    second = BlobKeeper(Link(client), keys, "w2")
    assert second.step() > 1
    assert store.kept() == []
    redis_client.delete(keys.keeper)
    go_round(second)
    assert store.kept() == [1]


def test_what_lives_for_long_is_not_written(
    store: Store, keeper: BlobKeeper, redis_client: redis.Redis, keys: Keys
) -> None:
    store.job()
    redis_client.expire(keys.blob(sha(1)), TTL - 3600)
    go_round(keeper)
    assert store.kept() == []


def test_a_key_of_a_wrong_type_does_not_keep_it_from_the_others(
    store: Store, keeper: BlobKeeper, redis_client: redis.Redis, keys: Keys
) -> None:
    store.job()
    redis_client.set(keys.jobs("high"), "no stream", ex=60)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        keeper.step()
    go_round(keeper)
    assert store.kept() == [1]
    redis_client.delete(keys.jobs("high"))

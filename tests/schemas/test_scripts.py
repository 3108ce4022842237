"""The Lua scripts against a real server: each step happens whole, once, and by its owner only."""

from __future__ import annotations

import time

import pytest
import redis

from lua_worker import LuaWorker, unpacked
from mlxq_schemas import GROUP, Failed, Finished, Job, Queued, Started, Token
from mlxq_schemas.wire import decode_job


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


@pytest.fixture
def other(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue, "w2")


def job(job_id: str = "j1", prompt: str = "hello") -> Job:
    return Job(id=job_id, prompt=prompt)


def take(worker: LuaWorker) -> tuple[bytes, int]:
    """Submit j1 and claim it: entry and epoch."""
    worker.submit(job())
    [(entry, job_id)] = worker.read()
    answer = worker.claim(job_id, entry)
    assert answer[0] == b"ok"
    return entry, answer[1]


# submit


def test_submit_stores_the_job_and_an_entry_without_payload(worker: LuaWorker) -> None:
    assert worker.submit(job()) == [b"ok"]
    [(entry, fields)] = worker.client.xrange(worker.keys.jobs())
    assert fields == {b"id": b"j1"}
    state = worker.state("j1")
    assert (state["state"], state["entry"].encode()) == ("queued", entry)
    spec = worker.client.hget(worker.keys.job("j1"), "spec")
    assert decode_job(spec, "j1") == job()
    assert [type(event) for event in worker.events("j1")] == [Queued]


def test_submit_again_is_no_second_job(worker: LuaWorker) -> None:
    worker.submit(job())
    assert worker.submit(job()) == [b"duplicate", b"queued"]
    assert worker.depth() == 1
    assert len(worker.events("j1")) == 1
    worker.do(["hi"])
    assert worker.submit(job()) == [b"duplicate", b"finished"]
    assert worker.depth() == 0


def test_submit_of_another_job_under_the_same_id(worker: LuaWorker) -> None:
    worker.submit(job())
    assert worker.submit(job(prompt="other")) == [b"conflict"]
    assert worker.depth() == 1


def test_submit_to_a_full_queue_leaves_nothing(worker: LuaWorker) -> None:
    worker.submit(job("a"))
    worker.submit(Job(id="b", prompt="x", priority="high"), max_depth=2)
    assert worker.submit(job("c"), max_depth=2) == [b"full", 2]
    assert not worker.client.exists(worker.keys.job("c"), worker.keys.events("c"))
    assert worker.submit(job("a"), max_depth=2)[0] == b"duplicate"


# numbering


@pytest.mark.parametrize(
    "start", [0, 126, 127, 128, 254, 255, 256, 32_767, 65_534, 65_535, 65_536, 2**31 - 1, 2**32]
)
def test_numbers_have_no_gap_at_any_width(worker: LuaWorker, start: int) -> None:
    entry, epoch = take(worker)
    worker.client.delete(worker.keys.events("j1"))
    worker.client.hset(worker.keys.job("j1"), "seq", start)
    events = [Token(job="j1", text=str(number)) for number in range(3)]
    assert worker.append("j1", epoch, *events) == start + 3
    assert worker.finish("j1", epoch, entry, "012") == 1
    assert [event.seq for event in worker.events("j1")] == [start + i for i in range(4)]
    assert worker.result("j1").seq == start + 3


def test_channel_carries_what_the_stream_keeps(worker: LuaWorker) -> None:
    with worker.client.pubsub() as channel:
        channel.subscribe(worker.keys.tokens("j1"))
        assert channel.get_message(timeout=5.0)
        worker.submit(job())
        worker.do(["a", "ü", "😀"])
        kept = [fields[b"e"] for _, fields in worker.client.xrange(worker.keys.events("j1"))]
        live = [channel.get_message(timeout=5.0) for _ in kept]
        assert [message and message["data"] for message in live] == kept
    seen = [unpacked(data) for data in kept]
    assert [event["seq"] for event in seen] == list(range(6))
    text = "".join(event["text"] for event in seen if event["type"] == "token")
    assert text == seen[-1]["text"] == worker.result("j1").text == "aü😀"


# claim and fencing


def test_claim_hands_out_the_job(worker: LuaWorker) -> None:
    worker.submit(job())
    [(entry, _)] = worker.read()
    answer = worker.claim("j1", entry)
    _, epoch, attempt, deaths, seq, spec, submitted, cancel, errors, life = answer
    assert (attempt, deaths, seq, cancel, errors) == (1, 0, 1, b"0", 0)
    assert (str(epoch), life.decode()) == (worker.state("j1")["epoch"], worker.state("j1")["life"])
    assert decode_job(spec, "j1") == job()
    assert abs(float(submitted) - time.time()) < 60


def test_late_worker_can_neither_publish_nor_finish(worker: LuaWorker, other: LuaWorker) -> None:
    entry, stale = take(worker)
    epoch = other.claim("j1", entry, how="over")[1]
    before = worker.events("j1")
    assert worker.append("j1", stale, Token(job="j1", text="late")) == -1
    assert worker.finish("j1", stale, entry, "late") == -1
    assert worker.finish("j1", stale, entry, code="internal") == -1
    assert worker.hand_back("j1", stale, entry) == -1
    assert worker.events("j1") == before
    assert not worker.client.exists(worker.keys.result("j1"), worker.keys.dead)
    assert other.finish("j1", epoch, entry, "right") == 1
    assert worker.result("j1").text == "right"


def test_nothing_follows_the_end(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    assert worker.finish("j1", epoch, entry, "done") == 1
    assert worker.append("j1", epoch, Token(job="j1", text="more")) == -1
    assert worker.finish("j1", epoch, entry, "again") == -1
    assert isinstance(worker.events("j1")[-1], Finished)
    assert worker.client.xlen(worker.keys.results) == 1


def test_entry_of_an_ended_job_is_swept(worker: LuaWorker) -> None:
    take(worker)
    worker.client.xadd(worker.keys.jobs(), {"id": "j1"})
    worker.client.hset(worker.keys.job("j1"), "state", "finished")
    [(entry, _)] = worker.read()
    assert worker.claim("j1", entry) == [b"gone"]
    assert worker.depth() == 1
    worker.client.delete(*worker.client.keys(f"{worker.keys.prefix}:*"))


def test_entry_without_a_job(worker: LuaWorker) -> None:
    worker.client.xadd(worker.keys.jobs(), {"id": "ghost"})
    [(entry, _)] = worker.read()
    word, epoch, _ = worker.claim("ghost", entry)
    assert word == b"missing"
    assert worker.finish("ghost", epoch, entry, code="bad_message") == 1
    assert worker.result("ghost").code == "bad_message"
    assert worker.depth() == 0


def test_deaths_count_only_lost_workers(worker: LuaWorker, other: LuaWorker) -> None:
    entry, _ = take(worker)
    assert other.claim("j1", entry, how="over")[2:4] == [2, 1]
    epoch = worker.claim("j1", entry, how="over")[1]
    assert worker.state("j1")["deaths"] == "2"
    assert worker.hand_back("j1", epoch, entry) == 1
    assert other.claim("j1", entry, how="over")[2:4] == [4, 2]


# finish


def test_finish_acknowledges_and_removes(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    worker.append("j1", epoch, Started(job="j1", worker="w1"))
    assert worker.finish("j1", epoch, entry, "") == 1
    assert worker.depth() == 0
    assert worker.client.xpending(worker.keys.jobs(), GROUP)["pending"] == 0
    [(_, row)] = worker.client.xrange(worker.keys.results)
    assert row == {b"id": b"j1", b"state": b"finished"}
    for key in (worker.keys.job("j1"), worker.keys.events("j1"), worker.keys.result("j1")):
        assert 0 < worker.client.ttl(key) <= 60


def test_failure_leaves_a_dead_letter(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    assert worker.finish("j1", epoch, entry, code="media_invalid") == 1
    [(_, row)] = worker.client.xrange(worker.keys.dead)
    assert row[b"id"] == b"j1"
    assert (row[b"code"], row[b"message"], row[b"attempts"]) == (b"media_invalid", b"why", b"1")
    assert isinstance(worker.events("j1")[-1], Failed)
    assert worker.client.ttl(worker.keys.job("j1")) > 60
    assert worker.client.hexists(worker.keys.job("j1"), "spec")


def test_full_server_refuses_the_whole_end(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    before = (worker.state("j1"), worker.events("j1"), worker.depth())
    worker.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            worker.finish("j1", epoch, entry, "text")
    finally:
        worker.client.config_set("maxmemory", "0")
    assert (worker.state("j1"), worker.events("j1"), worker.depth()) == before
    assert worker.finish("j1", epoch, entry, "text") == 1


# cancel


def test_cancel_of_a_waiting_job_ends_it(worker: LuaWorker) -> None:
    worker.submit(job())
    assert worker.cancel("j1") == b"cancelled"
    assert worker.depth() == 0
    assert [event.type for event in worker.events("j1")] == ["queued", "cancelled"]
    assert (worker.result("j1").type, worker.result("j1").seq) == ("cancelled", 1)
    assert worker.cancel("j1") == b"ended"


def test_cancel_of_a_job_pushed_by_hand(worker: LuaWorker) -> None:
    worker.client.hset(worker.keys.job("h"), "spec", '{"prompt": "hello"}')
    worker.client.xadd(worker.keys.jobs(), {"id": "h"})
    assert worker.cancel("h") == b"cancelled"
    [(entry, _)] = worker.read()
    assert worker.claim("h", entry) == [b"gone"]
    assert worker.depth() == 0


def test_cancel_of_a_running_job_asks_its_worker(worker: LuaWorker, other: LuaWorker) -> None:
    entry, _ = take(worker)
    with worker.client.pubsub() as control:
        control.subscribe(worker.keys.control)
        assert control.get_message(timeout=5.0)
        assert worker.cancel("j1") == b"asked"
        message = control.get_message(timeout=5.0)
        assert message is not None
        assert message["data"] == f"cancel j1 {worker.state('j1')['life']}".encode()
    assert other.claim("j1", entry, how="over")[7] == b"1"


def test_cancel_of_nothing(worker: LuaWorker) -> None:
    assert worker.cancel("nobody") == b"unknown"


# renew and hand back


def test_renewal_resets_the_idle_time_and_counts_no_delivery(worker: LuaWorker) -> None:
    entry, _ = take(worker)
    long = 3_600_000
    stream = worker.keys.jobs()
    worker.client.xclaim(stream, GROUP, worker.name, 0, [entry], idle=long, justid=True)
    assert worker.renew(entry) == []
    [row] = worker.client.xpending_range(stream, GROUP, "-", "+", 1)
    assert row["time_since_delivered"] < long
    assert row["times_delivered"] == 1


def test_renewal_does_not_steal_back(worker: LuaWorker, other: LuaWorker) -> None:
    entry, _ = take(worker)
    worker.client.xclaim(worker.keys.jobs(), GROUP, other.name, 0, [entry])
    assert worker.renew(entry, b"99-0") == [entry, b"99-0"]
    [row] = worker.client.xpending_range(worker.keys.jobs(), GROUP, "-", "+", 1)
    assert row["consumer"] == b"w2"


def test_job_handed_back_is_free_at_once(worker: LuaWorker, other: LuaWorker) -> None:
    entry, epoch = take(worker)
    assert worker.hand_back("j1", epoch, entry) == 1
    assert worker.append("j1", epoch, Token(job="j1", text="late")) == -1
    claimed = other.client.xautoclaim(worker.keys.jobs(), GROUP, other.name, 30_000, "0-0")
    assert [found for found, _ in claimed[1]] == [entry]
    answer = other.claim("j1", entry, how="over")
    assert (answer[0], answer[3]) == (b"ok", 0)


# a second taker, deaths, and running alone


def test_a_job_in_flight_at_two_deaths_must_be_alone(worker: LuaWorker, other: LuaWorker) -> None:
    entry, _ = take(worker)
    assert other.claim("j1", entry, "over")[0] == b"ok"
    word, epoch, _, deaths, *_ = worker.claim("j1", entry, "over")
    assert (word, deaths) == (b"alone", 2)
    assert other.claim("j1", entry, "over")[:4:3] == [b"alone", 2]  # it had not begun
    assert worker.begin("j1", epoch) == -1
    epoch = worker.claim("j1", entry, "over")[1]
    assert worker.begin("j1", epoch) == 1
    assert other.claim("j1", entry, "over")[:4:3] == [b"ok", 3]


def test_claiming_again_after_a_lost_reply_is_no_death(worker: LuaWorker) -> None:
    entry, _ = take(worker)
    assert worker.claim("j1", entry, "again")[3] == 0
    assert worker.claim("j1", entry, "over")[3] == 0  # it had dropped the job itself
    assert worker.claim("j1", entry, "left")[3] == 1  # an earlier process of this name


# delays and retries


def test_a_job_before_its_time_is_delayed(worker: LuaWorker) -> None:
    due = time.time() + 3600
    assert worker.submit(Job(id="j1", prompt="p", not_before=due, priority="low")) == [b"ok"]
    assert worker.state("j1")["state"] == "delayed"
    assert worker.client.zscore(worker.keys.delayed, "j1") == due
    assert worker.depth() == 0
    assert (
        worker.submit(Job(id="j1", prompt="p", not_before=due, priority="low"))[0] == b"duplicate"
    )
    assert worker.promote("j1") == 0
    worker.come_due("j1")
    assert worker.promote("j1") == 1
    assert worker.promote("j1") == 0
    assert worker.client.xlen(worker.keys.jobs("low")) == 1


def test_a_time_that_has_passed_delays_nothing(worker: LuaWorker) -> None:
    worker.submit(Job(id="j1", prompt="p", not_before=1.0))
    assert worker.depth() == 1


def test_delayed_jobs_count_as_depth(worker: LuaWorker) -> None:
    worker.submit(Job(id="a", prompt="p", not_before=time.time() + 3600))
    assert worker.submit(job("b"), max_depth=1) == [b"full", 1]


def test_a_retry_is_one_step(worker: LuaWorker, other: LuaWorker) -> None:
    entry, epoch = take(worker)
    worker.append("j1", epoch, Started(job="j1", worker="w1"))
    due = time.time() + 3600
    assert worker.retry("j1", epoch, entry, Token(job="j1", text="a"), due=due) == 1
    assert worker.retry("j1", epoch, entry) == -1
    assert worker.append("j1", epoch, Token(job="j1", text="late")) == -1
    assert [e.type for e in worker.events("j1")] == ["queued", "started", "token", "retrying"]
    assert (worker.depth(), worker.state("j1")["state"]) == (0, "delayed")
    assert worker.client.xpending(worker.keys.jobs(), GROUP)["pending"] == 0
    worker.come_due("j1")
    assert worker.promote("j1") == 1
    [(again, _)] = other.read()
    word, _, attempt, deaths, seq, *_, errors, _ = other.claim("j1", again)
    assert (word, attempt, deaths, seq, errors) == (b"ok", 2, 0, 4, 1)


def test_a_retry_of_a_lost_job_writes_nothing(worker: LuaWorker, other: LuaWorker) -> None:
    entry, epoch = take(worker)
    other.claim("j1", entry, how="over")
    before = (worker.state("j1"), worker.events("j1"), worker.depth())
    assert worker.retry("j1", epoch, entry) == -1
    assert (worker.state("j1"), worker.events("j1"), worker.depth()) == before
    assert not worker.client.exists(worker.keys.delayed)


def test_a_full_server_refuses_a_whole_retry(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    before = (worker.state("j1"), worker.events("j1"), worker.depth())
    worker.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            worker.retry("j1", epoch, entry)
    finally:
        worker.client.config_set("maxmemory", "0")
    assert (worker.state("j1"), worker.events("j1"), worker.depth()) == before
    assert worker.retry("j1", epoch, entry) == 1


def test_a_cancel_that_the_worker_did_not_hear_ends_the_wait(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    assert worker.cancel("j1") == b"asked"
    assert worker.retry("j1", epoch, entry, due=time.time() + 3600) == 1
    assert worker.promote("j1") == 1
    [(entry, _)] = worker.read()
    assert worker.claim("j1", entry)[7] == b"1"


def test_cancel_of_a_delayed_job_ends_it(worker: LuaWorker) -> None:
    worker.submit(Job(id="new", prompt="p", not_before=time.time() + 3600))
    entry, epoch = take(worker)
    worker.retry("j1", epoch, entry, due=time.time() + 3600)
    for name in ("new", "j1"):
        assert worker.cancel(name) == b"cancelled"
        worker.come_due(name)
        assert worker.promote(name) == 0
        assert worker.result(name).type == "cancelled"
    assert not worker.client.exists(worker.keys.delayed)


# dead letters


def bury(worker: LuaWorker) -> bytes:
    """Submit j1 and fail it; the row of its dead letter."""
    entry, epoch = take(worker)
    worker.append("j1", epoch, Token(job="j1", text="old"))
    assert worker.finish("j1", epoch, entry, code="media_invalid") == 1
    [(row, _)] = worker.client.xrange(worker.keys.dead)
    return row


def test_a_dead_job_lives_again(worker: LuaWorker) -> None:
    row = bury(worker)
    worker.client.hset(worker.keys.job("j1"), mapping={"deaths": 3, "errors": 2, "cancel": 1})
    assert worker.revive("j1", row) == b"ok"
    assert worker.revive("j1", row) == b"gone"
    assert not worker.client.exists(worker.keys.result("j1"))
    assert worker.client.ttl(worker.keys.job("j1")) == worker.client.ttl(worker.keys.events("j1"))
    assert worker.client.ttl(worker.keys.job("j1")) == -1
    [(entry, _)] = worker.read()
    word, epoch, attempt, deaths, seq, _, _, cancel, errors, _ = worker.claim("j1", entry)
    assert (word, attempt, deaths, seq) == (b"ok", 1, 0, 4)
    assert (cancel, errors) == (b"0", 0)
    assert worker.finish("j1", epoch, entry, "new") == 1
    types = [event.type for event in worker.events("j1")]
    assert types == ["queued", "token", "failed", "retrying", "finished"]
    assert worker.result("j1").text == "new"
    assert worker.client.xlen(worker.keys.dead) == 0


def test_only_the_dead_are_revived(worker: LuaWorker) -> None:
    row = bury(worker)
    worker.client.hset(worker.keys.job("j1"), "state", "finished")
    assert worker.revive("j1", row) == b"alive"
    worker.client.delete(worker.keys.job("j1"))
    assert worker.revive("j1", row) == b"lost"
    assert worker.depth() == 0


def test_a_full_server_refuses_a_whole_revival(worker: LuaWorker) -> None:
    row = bury(worker)
    before = (worker.state("j1"), worker.events("j1"))
    worker.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            worker.revive("j1", row)
    finally:
        worker.client.config_set("maxmemory", "0")
    assert (worker.state("j1"), worker.events("j1")) == before
    assert worker.client.ttl(worker.keys.job("j1")) > 0
    assert worker.revive("j1", row) == b"ok"


def test_a_dropped_job_is_forgotten(worker: LuaWorker) -> None:
    row = bury(worker)
    assert worker.forget("j1", row) == 1
    assert worker.forget("j1", row) == 0
    left = worker.client.keys(f"{worker.keys.prefix}:*:j1")
    assert (left, worker.client.xlen(worker.keys.dead)) == ([], 0)
    assert worker.submit(job()) == [b"ok"]


def test_dropping_a_stale_letter_leaves_a_living_job_alone(worker: LuaWorker) -> None:
    row = bury(worker)
    worker.client.hset(worker.keys.job("j1"), "state", "finished")
    assert worker.forget("j1", row) == 1
    assert worker.client.exists(worker.keys.job("j1"))

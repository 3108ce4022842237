"""The judge of a chaos run sees what is lost, doubled, wrong, of a former life, or left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.check import Checker, Verdict
from chaos.diary import Diary, Life, Lives
from chaos.records import Snapshot, expire, flush, read_record
from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import (
    Cancelled,
    ExpiredEvent,
    Finished,
    Job,
    Queued,
    Started,
    Token,
    TokenLogprob,
    Usage,
)
from mlxq_schemas.wire import encode_event

POOL: dict[str, dict[str, Any]] = {
    "t": {"name": "t", "text": "a red circle", "reason": "stop"},
    "other": {"name": "other", "text": "two blue squares", "reason": "stop"},
    "broken": {"name": "broken", "code": "media_invalid"},
}
RED, BLUE = ["a red ", "circle"], ["two blue ", "squares"]


def submit(worker: LuaWorker, number: int = 1, prompt: str = "p") -> None:
    worker.submit(Job(id="a", prompt=prompt, metadata={"life": number}))


def judge(worker: LuaWorker, *lives: Life, flushed: tuple[Snapshot, ...] = ()) -> Verdict:
    known = Lives()
    for life in lives:
        known.add(life)
    return Checker(worker.client, worker.queue, POOL, known, flushed).check()


def life(number: int = 1, template: str = "t", job_id: str = "a", **more: Any) -> Life:
    return Life(job_id, number, template, accepted=True, **more)


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


@pytest.fixture
def done(worker: LuaWorker) -> LuaWorker:
    """A queue with one job that has ended rightly."""
    submit(worker)
    worker.do(RED)
    return worker


# One life


def test_what_is_whole_is_clean(done: LuaWorker) -> None:
    verdict = judge(done, life(read={"seqs": [0, 1, 2, 3, 4], "text": "a red circle"}))
    assert verdict.clean, verdict.problems
    assert (verdict.jobs, verdict.ends["finished"]) == (1, 1)


def _lose_result(worker: LuaWorker) -> None:
    worker.client.delete(worker.keys.result("a"))


def _lose_row(worker: LuaWorker) -> None:
    worker.client.xtrim(worker.keys.results, maxlen=0, approximate=False)


def _second_row(worker: LuaWorker) -> None:
    worker.client.xadd(worker.keys.results, {"id": "a", "state": "finished"})


def _row_of_nobody(worker: LuaWorker) -> None:
    worker.client.xadd(worker.keys.results, {"id": "b", "state": "finished"})


def _late_event(worker: LuaWorker) -> None:
    late = encode_event(Token(job="a", seq=5, text="again"))
    worker.client.xadd(worker.keys.events("a"), {"e": late}, id="6-0")


def _gap(worker: LuaWorker) -> None:
    worker.client.xdel(worker.keys.events("a"), "4-0")


def _entry(worker: LuaWorker) -> None:
    worker.client.xadd(worker.keys.jobs(), {"id": "a"})


def _delayed(worker: LuaWorker) -> None:
    worker.client.zadd(worker.keys.delayed, {"a": 0})


def _events_without_a_job(worker: LuaWorker) -> None:
    event = encode_event(Token(job="b", seq=0, text="x"))
    worker.client.xadd(worker.keys.events("b"), {"e": event}, id="1-0")
    worker.client.expire(worker.keys.events("b"), 60)


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (_lose_result, "lost"),
        (_lose_row, "lost"),
        (_second_row, "doubled"),
        (_row_of_nobody, "doubled"),
        (_late_event, "doubled"),
        (_gap, "doubled"),
        (_entry, "left_over"),
        (_delayed, "left_over"),
        (_events_without_a_job, "mixed"),
    ],
)
def test_harm_is_seen(done: LuaWorker, harm: Callable[[LuaWorker], None], kind: str) -> None:
    harm(done)
    verdict = judge(done, life())
    assert getattr(verdict, kind) == 1, verdict.problems


def test_a_promised_job_that_nobody_knows_is_lost(done: LuaWorker) -> None:
    assert judge(done, life(), life(job_id="b")).lost == 1


def test_a_job_that_vanished_under_its_reader_is_lost(done: LuaWorker) -> None:
    assert judge(done, life(gone=0)).lost == 1


def test_a_job_that_nobody_sent_is_wrong(done: LuaWorker) -> None:
    verdict = judge(done)
    assert (verdict.wrong, verdict.lost, verdict.doubled) == (1, 0, 0), verdict.problems


def test_another_text_or_another_story_is_wrong(done: LuaWorker) -> None:
    assert judge(done, life(read={"seqs": [0, 1, 3, 4], "text": "a circle"})).wrong == 1
    assert judge(done, life(template="other")).wrong == 1


def test_a_key_that_stays_for_ever_is_left_over(done: LuaWorker) -> None:
    done.client.persist(done.keys.result("a"))
    verdict = judge(done, life())
    done.client.expire(done.keys.result("a"), 60)
    assert verdict.left_over == 1


def test_pending_entries_are_left_over_by_stream_and_by_consumer(done: LuaWorker) -> None:
    _entry(done)
    done.read()
    verdict = judge(done, life())
    assert verdict.left_over == 2
    assert "consumer b'w1' has 1 pending" in verdict.problems[-1]


def test_a_failure_has_its_dead_letter_until_it_is_forgotten(worker: LuaWorker) -> None:
    submit(worker)
    [(entry, _)] = worker.read()
    worker.finish("a", worker.claim("a", entry)[1], entry, code="media_invalid")
    assert judge(worker, life(template="broken")).clean
    worker.client.xtrim(worker.keys.dead, maxlen=0, approximate=False)
    assert judge(worker, life(template="broken")).lost == 1
    assert judge(worker, life(template="broken", forgotten=True)).clean


def test_a_wrong_clock_must_not_end_a_job(worker: LuaWorker) -> None:
    submit(worker)
    [(entry, _)] = worker.read()
    worker.finish("a", worker.claim("a", entry)[1], entry, event=ExpiredEvent(job="a"))
    assert judge(worker, life(more={"deadline": 1e10})).wrong == 1


def test_a_job_whose_time_does_not_come_must_not_begin(worker: LuaWorker) -> None:
    submit(worker)
    [(entry, _)] = worker.read()
    epoch = worker.claim("a", entry)[1]
    worker.finish("a", epoch, entry, event=Cancelled(job="a"))
    sleeper = life(asleep=True, cancelled=True)
    assert judge(worker, sleeper).clean
    started = encode_event(Started(job="a", worker="w1", seq=1))
    worker.client.delete(worker.keys.events("a"))
    for n, event in enumerate((encode_event(Queued(job="a", seq=0)), started)):
        worker.client.xadd(worker.keys.events("a"), {"e": event}, id=f"{n + 1}-0")
    end = encode_event(Cancelled(job="a", seq=2))
    worker.client.xadd(worker.keys.events("a"), {"e": end}, id="3-0")
    worker.client.expire(worker.keys.events("a"), 60)
    verdict = judge(worker, sleeper)
    assert verdict.wrong == 1, verdict.problems


# Ids used again


@pytest.fixture
def first(done: LuaWorker) -> Life:
    """The first life of an id, with its story; its record has expired."""
    age, record = read_record(done.client, done.queue, "a")
    expire(done.client, done.queue, record, 1)
    while done.client.exists(done.keys.job("a")):
        pass
    return life(stories=[(age, record)])


def second(worker: LuaWorker) -> tuple[bytes, int]:
    """The second one runs: its entry and epoch."""
    submit(worker, 2, "other")
    [(entry, _)] = worker.read()
    epoch = worker.claim("a", entry)[1]
    worker.append("a", epoch, Started(job="a", worker="w1", attempt=1))
    return entry, epoch


def blue(worker: LuaWorker, entry: bytes, epoch: int, *before: Any) -> None:
    """It ends as it should, after these events."""
    tokens = [Token(job="a", text=piece, attempt=1) for piece in BLUE]
    worker.append("a", epoch, *before, *tokens)
    assert worker.finish("a", epoch, entry, "".join(BLUE), event=finished(BLUE)) == 1


def finished(pieces: list[str]) -> Finished:
    return Finished(job="a", reason="stop", text="".join(pieces), attempt=1)


def test_an_id_used_again_is_two_jobs(worker: LuaWorker, first: Life) -> None:
    blue(worker, *second(worker))
    verdict = judge(worker, first, life(2, "other", after="expiry"))
    assert verdict.clean, verdict.problems
    assert (verdict.jobs, verdict.after["expiry"]) == (2, 1)


def test_its_row_is_missed_in_either_life(worker: LuaWorker, first: Life) -> None:
    blue(worker, *second(worker))
    [(row, _)] = worker.client.xrange(worker.keys.results, count=1)
    worker.client.xdel(worker.keys.results, row)
    assert judge(worker, first, life(2, "other")).lost == 1


def test_a_record_is_not_expired_in_its_ids_next_life(worker: LuaWorker, first: Life) -> None:
    blue(worker, *second(worker))
    expire(worker.client, worker.queue, first.stories[0][1], 1)
    assert worker.client.ttl(worker.keys.job("a")) > 10


@pytest.mark.parametrize(
    "strange",
    [
        Token(job="a", text="a", attempt=1),
        Queued(job="a"),
        Started(job="a", worker="w0", attempt=1),
        Token(job="a", text="", attempt=0),
    ],
    ids=["a token", "queued again", "two workers in one attempt", "an earlier attempt"],
)
def test_an_event_of_a_former_life_is_seen(worker: LuaWorker, first: Life, strange: Any) -> None:
    blue(worker, *second(worker), strange)
    verdict = judge(worker, first, life(2, "other"))
    assert (verdict.mixed, verdict.wrong) == (1, 0), verdict.problems


def test_the_text_of_a_former_life_is_seen(worker: LuaWorker, first: Life) -> None:
    entry, epoch = second(worker)
    worker.append("a", epoch, *(Token(job="a", text=piece, attempt=1) for piece in RED))
    worker.finish("a", epoch, entry, "".join(RED), event=finished(RED))
    verdict = judge(worker, first, life(2, "other"))
    assert verdict.mixed == 1, verdict.problems
    assert "says what life 1 says" in verdict.problems[0]


# FLUSHALL


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """One that may be flushed."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def flushable(own_server: EmbeddedServer) -> Iterator[LuaWorker]:
    client = redis.Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0))
    client.flushall()
    yield LuaWorker(client, "q")
    client.close()


def test_what_a_flush_ended_is_sent_again_and_ends_once(flushable: LuaWorker) -> None:
    submit(flushable)
    shot = flush(flushable.client, "q", 1)
    assert (shot.age, len(shot.records), flushable.client.dbsize()) == (0, 1, 1)
    blue(flushable, *second(flushable))
    again = life(2, "other", after="flush", age=1)
    verdict = judge(flushable, life(gone=1), again, flushed=(shot,))
    assert verdict.clean, verdict.problems
    assert (verdict.jobs, verdict.unfinished, verdict.after["flush"]) == (1, 1, 1)


def test_what_a_flush_ended_and_nobody_sent_again_is_lost(flushable: LuaWorker) -> None:
    submit(flushable)
    shot = flush(flushable.client, "q", 1)
    assert judge(flushable, life(gone=1), flushed=(shot,)).lost == 1
    tried = Life("a", 2, "other", age=1, after="flush")  # but not accepted
    assert judge(flushable, life(gone=1), tried, flushed=(shot,)).lost == 1


def test_what_ended_before_a_flush_is_judged_by_what_there_was(flushable: LuaWorker) -> None:
    submit(flushable)
    flushable.do(RED)
    shot = flush(flushable.client, "q", 1)
    assert judge(flushable, life(), flushed=(shot,)).clean
    assert judge(flushable, life(template="other"), flushed=(shot,)).wrong == 1
    shot.rows["a"] += 1
    assert judge(flushable, life(), flushed=(shot,)).doubled == 1


def test_one_life_may_end_in_two_ages_only_if_it_was_sent_over_a_flush(
    flushable: LuaWorker,
) -> None:
    shots: list[Snapshot] = [flush(flushable.client, "q", 1)]
    for age in (2, 3):
        submit(flushable)
        flushable.do(RED)
        shots.append(flush(flushable.client, "q", age))
    assert judge(flushable, life(age=1), flushed=tuple(shots)).clean
    assert judge(flushable, life(age=0), flushed=tuple(shots)).doubled == 1


def _entry_outlives_its_record(worker: LuaWorker) -> None:
    worker.client.xadd(worker.keys.jobs(), {"id": "a"})
    [(entry, _)] = worker.read()
    worker.finish("a", worker.claim("a", entry)[1], entry, code="bad_message")


def test_an_entry_without_a_record_is_a_fault(flushable: LuaWorker) -> None:
    _entry_outlives_its_record(flushable)
    assert judge(flushable).lost == 1


def test_but_not_after_a_flush(flushable: LuaWorker) -> None:
    submit(flushable)
    shot = flush(flushable.client, "q", 1)
    _entry_outlives_its_record(flushable)
    blue(flushable, *second(flushable))
    lives = (life(gone=1), life(2, "other", age=1))
    verdict = judge(flushable, *lives, flushed=(shot,))
    assert verdict.clean, verdict.problems
    assert verdict.swept == 1
    flushable.client.xtrim(flushable.keys.dead, maxlen=0, approximate=False)
    assert judge(flushable, *lives, flushed=(shot,)).doubled == 1


def test_pictures_may_be_missing_only_after_a_flush(flushable: LuaWorker) -> None:
    shot = flush(flushable.client, "q", 1)
    submit(flushable)
    [(entry, _)] = flushable.read()
    epoch = flushable.claim("a", entry)[1]
    flushable.finish("a", epoch, entry, code="media_not_found")
    assert judge(flushable, life(age=0), flushed=(shot,)).clean
    assert judge(flushable, life(age=1), flushed=(shot,)).wrong == 1


# Diaries


def test_a_diary_says_what_was_written_but_for_the_line_that_a_kill_cut(
    done: LuaWorker, tmp_path: Path
) -> None:
    path = tmp_path / "p0.diary"
    diary, first = Diary(path), life()
    age, record = read_record(done.client, done.queue, "a")
    tried = {"template": "t", "age": 0, "more": {}, "asleep": False, "after": ""}
    diary.write("try", first, **tried)
    diary.write("accepted", first)
    diary.write("cancel", first)
    diary.write("story", first, age=age, record=record.as_text())
    diary.write("read", first, seqs=[0], text="a")
    diary.close()
    with path.open("a") as file:
        file.write('{"step": "gone", "id": "a", "li')
    [found] = Lives.of([path])
    assert (found.accepted, found.cancelled, found.forgotten, found.gone) == (1, 1, 0, None)
    assert found.stories == [(0, record)]
    assert found.read == {"seqs": [0], "text": "a"}
    again = Diary(path)
    again.close()
    assert again.lives.last() == [found]


def test_other_ids_or_log_probabilities_are_wrong(
    redis_client: redis.Redis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LuaWorker(redis_client, queue)
    submit(other)
    [(entry, _)] = other.read()
    epoch = other.claim("a", entry)[1]
    scored = [TokenLogprob(id=i, logprob=-0.25) for i in (7, 2)]
    text = "a red circle"
    other.append("a", epoch, Token(job="a", text=text, ids=[7], logprobs=scored[:1]))
    other.append("a", epoch, Token(job="a", text="", ids=[2], logprobs=scored[1:]))
    end = Finished(job="a", reason="stop", text=text, usage=Usage(completion_tokens=2))
    other.finish("a", epoch, entry, text, event=end)
    right = {**POOL["t"], "ids": [7, 2], "logprobs": [-0.25, -0.2501]}
    for template, wrong in (
        (right, 0),
        ({**right, "ids": [7]}, 1),
        ({**right, "logprobs": [-0.25]}, 1),
        ({**right, "logprobs": [-0.25, -0.5]}, 1),
    ):
        monkeypatch.setitem(POOL, "t", template)
        assert judge(other, life()).wrong == wrong

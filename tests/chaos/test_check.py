"""The judge of a chaos run sees what is lost, doubled, wrong or left over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from chaos.check import Checker, Diaries, Verdict
from lua_worker import LuaWorker
from mlxq_schemas import Job, Token
from mlxq_schemas.wire import encode_event

POOL = {"t": {"name": "t", "text": "a red circle", "reason": "stop"}}


@pytest.fixture
def other(redis_client: redis.Redis, queue: str) -> LuaWorker:
    """A queue with one job that has ended rightly."""
    other = LuaWorker(redis_client, queue)
    other.submit(Job(id="a", prompt="p"))
    other.do(["a red ", "circle"])
    return other


def judge(other: LuaWorker, diaries: Diaries) -> Verdict:
    return Checker(other.client, other.queue, POOL, diaries).check()


def diaries(**read: object) -> Diaries:
    return Diaries(templates={"a": "t"}, accepted={"a"}, read={"a": read} if read else {})


def test_what_is_whole_is_clean(other: LuaWorker) -> None:
    read = {"seqs": [0, 1, 2, 3, 4], "text": "a red circle"}
    verdict = judge(other, diaries(**read))
    assert verdict.clean, verdict.problems
    assert (verdict.jobs, verdict.ends["finished"]) == (1, 1)


def _lose_result(other: LuaWorker) -> None:
    other.client.delete(other.keys.result("a"))


def _second_row(other: LuaWorker) -> None:
    other.client.xadd(other.keys.results, {"id": "a", "state": "finished"})


def _late_event(other: LuaWorker) -> None:
    late = encode_event(Token(job="a", seq=5, text="again"))
    other.client.xadd(other.keys.events("a"), {"e": late}, id="6-0")


def _gap(other: LuaWorker) -> None:
    other.client.xdel(other.keys.events("a"), "4-0")


def _entry(other: LuaWorker) -> None:
    other.client.xadd(other.keys.jobs(), {"id": "a"})


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (_lose_result, "lost"),
        (_second_row, "doubled"),
        (_late_event, "doubled"),
        (_gap, "doubled"),
        (_entry, "left_over"),
    ],
)
def test_harm_is_seen(other: LuaWorker, harm: Callable[[LuaWorker], None], kind: str) -> None:
    harm(other)
    verdict = judge(other, diaries())
    assert getattr(verdict, kind) == 1, verdict.problems


def test_a_promised_job_that_nobody_knows_is_lost(other: LuaWorker) -> None:
    verdict = judge(other, Diaries(templates={"a": "t", "b": "t"}, accepted={"a", "b"}))
    assert verdict.lost == 1


def test_another_text_or_another_story_is_wrong(
    other: LuaWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(other, diaries(seqs=[0, 1, 3, 4], text="a circle")).wrong == 1
    monkeypatch.setitem(POOL, "t", {**POOL["t"], "text": "a blue circle"})
    assert judge(other, diaries()).wrong == 1


def test_a_key_that_stays_for_ever_is_left_over(other: LuaWorker) -> None:
    other.client.persist(other.keys.result("a"))
    verdict = judge(other, diaries())
    other.client.expire(other.keys.result("a"), 60)
    assert verdict.left_over == 1

"""Reading by free capacity, in order of priority, and never deaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job, Keys
from mlxq_worker.queue import intake as module
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.intake import Intake
from mlxq_worker.queue.link import LINK_ERRORS, Link
from tcp_proxy import TcpProxy


class Desk:
    """Takes entries as the worker would."""

    def __init__(self, link: Link, keys: Keys, room: int = 10) -> None:
        self.free = room
        self.taken: list[Entry] = []
        self.empty = 0
        self.error: Exception | None = None
        self.intake = Intake(
            link, keys, "w", room=lambda: self.free, take=self.take, on_empty=self.note
        )

    def take(self, entries: Sequence[Entry]) -> None:
        if self.error is not None:
            raise self.error
        self.taken += entries

    def note(self) -> None:
        self.empty += 1

    @property
    def ids(self) -> list[str | None]:
        return [entry.job_id for entry in self.taken]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_MS", 20)


@pytest.fixture
def desk(link: Link, keys: Keys) -> Desk:
    return Desk(link, keys)


def submit(other: LuaWorker, *names: str, **fields: str) -> None:
    for name in names:
        other.submit(Job.model_validate({"id": name, "prompt": "p", **fields}))


def test_urgent_jobs_come_first_and_no_more_than_fit(desk: Desk, other: LuaWorker) -> None:
    submit(other, "l1", "l2", priority="low")
    submit(other, "n1", "n2")
    submit(other, "h1", priority="high")
    desk.free = 2
    desk.intake.step()
    assert desk.ids == ["h1", "n1"]
    desk.free = 0
    assert desk.intake.step() == module.FULL_PAUSE
    assert len(desk.taken) == 2
    desk.free = 10
    desk.intake.step()
    assert desk.ids == ["h1", "n1", "n2", "l1", "l2"]
    assert not any(entry.how == "over" for entry in desk.taken)


def test_an_empty_queue_is_told(desk: Desk) -> None:
    desk.intake.step()
    assert (desk.taken, desk.empty) == ([], 1)


def test_it_goes_on_after_flushall(
    desk: Desk, other: LuaWorker, keys: Keys, redis_client: redis.Redis
) -> None:
    desk.intake.step()
    redis_client.delete(*keys.all_jobs())
    assert desk.intake.step() == module.GROUP_PAUSE
    submit(other, "a")
    redis_client.xgroup_destroy(keys.jobs(), GROUP)  # the entry came before the group is back
    desk.intake.step()
    desk.intake.step()
    assert desk.ids == ["a"]


def test_entries_of_a_lost_reply_are_read_again(
    shaky: Link, proxy: TcpProxy, keys: Keys, other: LuaWorker
) -> None:
    desk = Desk(shaky, keys)
    desk.intake.step()
    submit(other, "a", "b")
    proxy.swallow("XREADGROUP")
    with pytest.raises(LINK_ERRORS):
        desk.intake.step()
    assert desk.ids == []
    desk.intake.step()
    assert desk.ids == ["a", "b"]
    assert not any(entry.how == "over" for entry in desk.taken)  # nobody died


def test_entries_that_could_not_be_claimed_are_read_again(desk: Desk, other: LuaWorker) -> None:
    desk.intake.step()
    submit(other, "a")
    desk.error = RuntimeError("refused")
    with pytest.raises(RuntimeError):
        desk.intake.step()
    desk.error = None
    desk.intake.step()
    assert desk.ids == ["a"]


def test_what_an_earlier_life_left_counts_as_taken_over(
    desk: Desk, other: LuaWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    other.name = "w"
    submit(other, *"abcde")
    assert len(other.read(5)) == 5
    desk.intake.step()
    assert desk.ids == list("abcde")
    assert all(entry.how == "left" for entry in desk.taken)


def test_a_pending_entry_without_its_text_is_marked(
    desk: Desk, other: LuaWorker, keys: Keys, redis_client: redis.Redis
) -> None:
    other.name = "w"
    redis_client.xadd(keys.jobs(), {"id": "a"})
    [(entry, _)] = other.read()
    redis_client.xdel(keys.jobs(), entry)
    desk.intake.step()
    assert [e.deleted for e in desk.taken] == [True]


def test_while_all_wait_places_go_by_weight_and_none_starves(desk: Desk, other: LuaWorker) -> None:
    for priority in ("high", "normal", "low"):
        submit(other, *(f"{priority}{i}" for i in range(20)), priority=priority)
    desk.free = 1
    for _ in range(20):
        desk.intake.step()
    counts = Counter(str(name).rstrip("0123456789") for name in desk.ids)
    assert counts == {"high": 12, "normal": 6, "low": 2}
    assert desk.ids[0] == "high0"
    desk.free = 10
    desk.intake.step()
    assert [str(name)[0] for name in desk.ids[20:]] == [*"hhhhhhnnnl"]


def test_places_that_a_stream_cannot_fill_go_to_the_others(desk: Desk, other: LuaWorker) -> None:
    submit(other, "h", priority="high")
    submit(other, *(f"l{i}" for i in range(20)), priority="low")
    desk.free = 10
    desk.intake.step()
    assert desk.ids == ["h", *(f"l{i}" for i in range(9))]

"""Giving jobs back."""

from __future__ import annotations

import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job, Started
from mlxq_worker.queue.claim import Claim, Claimer, Retention
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.hand_back import hand_back
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.reclaim import Reclaimer
from mlxq_worker.queue.standstill import Standstill


def test_a_job_given_back_can_be_taken_at_once_and_counts_no_death(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    [(entry, _)] = other.read()
    claimer = Claimer(other.keys, "other", Retention(60, 600))
    [claim] = claimer.claim(link, [Entry(other.keys.jobs(), entry.decode(), "a")])
    assert isinstance(claim, Claim)
    heard = redis_client.pubsub()
    heard.subscribe(other.keys.control)
    assert hand_back(link, other.keys, "other", [claim]) == 1
    assert hand_back(link, other.keys, "other", [claim]) == 0
    assert other.append("a", claim.epoch, Started(job="a")) == -1
    messages = [heard.get_message(timeout=5) for _ in range(2)]
    assert messages[1]
    assert messages[1]["data"] == b"reclaim"
    heard.close()
    taken: list[Entry] = []
    Reclaimer(
        link,
        other.keys,
        "w",
        lease=3600,
        period=1,
        room=lambda: 5,
        take=taken.extend,
        standstill=Standstill(1800),
    ).step()
    [again] = claimer.claim(link, taken)
    assert isinstance(again, Claim)
    assert (again.attempt, again.deaths) == (2, 0)


def test_nothing_to_give_back_asks_nothing(link: Link, other: LuaWorker) -> None:
    assert hand_back(link, other.keys, "other", []) == 0
    assert link.generation == 0

"""No order of events loses or doubles a job, and the machine that says so can fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from lua_worker import LuaWorker
from mlxq_schemas.scripts import ScriptName, script
from queue_machine import QueueMachine


class OldFence(LuaWorker):
    """Lease numbers count from 1 in each record."""

    def run(self, name: ScriptName, keys: list[str], *args: Any) -> Any:
        source = script(name)
        if name in {"claim", "hand_back"}:
            source = source.replace("fresh(now, count(known.epoch))", "count(known.epoch) + 1")
            source = source.replace("fresh(clock(), tonumber(ARGV[1]))", "tonumber(ARGV[1]) + 1")
            assert source != script(name)
        return self.client.eval(source, len(keys), *keys, *args)


def run(client: redis.Redis, worker: type[LuaWorker] = LuaWorker, **how: Any) -> None:
    kind: Callable[[], QueueMachine] = type(
        "Machine", (QueueMachine,), {"client": client, "worker": worker}
    )
    run_state_machine_as_test(kind, settings=settings(**how))


def test_no_order_of_events_loses_or_doubles_a_job(redis_client: redis.Redis) -> None:
    run(redis_client, max_examples=25, stateful_step_count=10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_long_order_of_events_does_either(redis_client: redis.Redis) -> None:
    examples = 50 if os.environ.get("MLXQ_TEST_SHORT") else 1000
    run(redis_client, max_examples=examples, stateful_step_count=40)


def test_a_fence_that_starts_anew_is_found(redis_client: redis.Redis) -> None:
    """The machine can fail: it finds writes of a former life where numbers are given out twice."""
    with pytest.raises(AssertionError):
        run(
            redis_client,
            OldFence,
            max_examples=200,
            stateful_step_count=15,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
        )

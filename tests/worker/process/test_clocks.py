"""Workers and producers whose clocks are wrong by days, beside others: only the server's counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Keys
from worker_process import StartWorker, eventually

SHIFTED = str(Path(__file__).parents[2] / "shifted_clock.py")
DAYS = 9.5 * 86400


@pytest.mark.parametrize("shift", [DAYS, -DAYS])
def test_a_worker_with_a_wrong_clock_does_what_others_do(
    start_worker: StartWorker,
    producer: Producer,
    redis_client: redis.Redis,
    queue: str,
    shift: float,
) -> None:
    keys, now = Keys(queue), producer.now()
    hour_old = int((now - 3600) * 1000)
    redis_client.xadd(keys.results, {"id": "kept", "state": "finished"}, id=f"{hour_old}-0")
    redis_client.xadd(keys.dead, {"id": "kept", "code": "x"}, id=f"{hour_old}-0")
    later = producer.submit(prompt="later", not_before=now + 3600)
    hurried = producer.submit(prompt="in an hour", deadline=now + 3600)
    failing = producer.submit(prompt="x", model="nobody's")
    start_worker(program=(SHIFTED, str(shift), "mlxq_worker"))
    assert producer.result(hurried, wait=120).ok
    assert producer.result(failing, wait=120).code == "unknown_model"
    result = producer.result(hurried)
    assert result.t == pytest.approx(producer.now(), abs=120)
    assert 0 <= result.timing.queued < 120
    assert all(abs(event.t - now) < 120 for event in producer.follow(hurried))
    assert redis_client.hget(keys.job(later), "state") == b"delayed"
    assert redis_client.xrange(keys.results)[0][1][b"id"] == b"kept"
    assert redis_client.xrange(keys.dead)[0][1][b"id"] == b"kept"
    [worker] = producer.status().workers
    assert worker.number("heartbeat") == pytest.approx(producer.now(), abs=120)
    assert worker.number("started") == pytest.approx(producer.now(), abs=120)
    redis_client.zadd(keys.delayed, {later: 1.0})
    # The job itself says when: who took it too early puts it off again, by the server's clock.
    eventually(lambda: redis_client.zscore(keys.delayed, later) == pytest.approx(now + 3600, abs=1))
    assert producer.cancel(later) == "cancelled"

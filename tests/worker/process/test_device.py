"""Workers whose device fails: no job is lost, failed or counted for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Finished, Keys, Token
from mlxq_schemas.errors import EXIT_DEVICE_FAILED
from sick_device import MEMORY, OTHER
from worker_process import PATIENCE, StartWorker

SICK = (str(Path(__file__).parents[2] / "sick_worker.py"),)
JOBS = 60


def submit(producer: Producer, life: str) -> list[str]:
    jobs = [
        {"id": f"{life}{n}", "prompt": f"Say {n}.", "sampling": sampling(n)} for n in range(JOBS)
    ]
    producer.submit_many(jobs)
    return [job["id"] for job in jobs]


def sampling(n: int) -> dict[str, object]:
    return {"max_tokens": 4 + n % 9, "ignore_eos": True}


def judge(producer: Producer, names: list[str]) -> dict[str, str]:
    """Each job ended once, rightly, its tokens without gap or repeat; the texts by name."""
    texts: dict[str, str] = {}
    for name in names:
        result = producer.result(name, wait=PATIENCE)
        events = list(producer.follow(name))
        assert [event.seq for event in events] == list(range(len(events)))
        assert isinstance(events[-1], Finished)
        tokens = [event for event in events if isinstance(event, Token)]
        assert "".join(event.text for event in tokens) == result.text
        assert sum(len(event.ids) for event in tokens) == 4 + int(name[1:]) % 9
        texts[name] = result.text
    assert not producer.status().dead
    return texts


@pytest.mark.timeout(300)
def test_an_error_of_the_device_costs_no_job_an_attempt(
    start_worker: StartWorker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = submit(producer, "a")
    monkeypatch.setenv("SICK", f"decode 6 1 {OTHER[0]}")
    worker = start_worker(model=None, program=SICK)
    judge(producer, names)
    assert {producer.result(name).attempt for name in names} == {1}
    assert worker.log.count("device error") == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("error", [OTHER[0], MEMORY[0]])
def test_a_device_that_stays_sick_ends_the_worker_and_another_goes_on(
    start_worker: StartWorker,
    producer: Producer,
    redis_client: redis.Redis,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: str,
) -> None:
    names = submit(producer, "a")
    monkeypatch.setenv("SICK", f"decode 40 ever {error}")
    caches = ("--cache-dir", str(tmp_path / "cache"), "--max-rows", "6")
    worker = start_worker(*caches, model=None, program=SICK)
    assert worker.wait() == EXIT_DEVICE_FAILED
    assert "error[device_failed]" in worker.log
    assert error in worker.log
    assert not producer.status().workers
    states = [redis_client.hgetall(Keys(queue).job(name)) for name in names]
    assert any(state[b"state"] == b"running" for state in states)  # given back
    start_worker(*caches, model=None)
    texts = judge(producer, names)
    states = [redis_client.hgetall(Keys(queue).job(name)) for name in names]
    assert {int(state.get(b"deaths", 0)) for state in states} == {0}
    assert {int(state.get(b"errors", 0)) for state in states} == {0}
    again = judge(producer, submit(producer, "b"))
    assert list(again.values()) == list(texts.values())


@pytest.mark.timeout(300)
def test_errors_while_the_model_loads(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, code in (
        (OTHER[0], EXIT_DEVICE_FAILED, "device_failed"),
        (MEMORY[0], 2, "model_not_loaded"),
    ):
        monkeypatch.setenv("SICK", f"build 0 1 {error}")
        worker = start_worker(model=None, program=SICK, wait=False)
        assert worker.wait() == status
        assert f"error[{code}]" in worker.log
        assert error in worker.log
    assert "does not fit into memory" in worker.log

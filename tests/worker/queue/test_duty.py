"""A background thread that survives errors and does not run hot."""

from __future__ import annotations

import threading

import pytest
import redis

from mlxq_worker.queue import duty as module
from mlxq_worker.queue.duty import Duty, backoff


def test_backoff_grows_to_a_limit() -> None:
    assert 0.025 <= backoff(1) <= 0.05
    assert all(backoff(n) <= module.LONGEST_DELAY for n in (1, 5, 50, 10_000))
    assert backoff(50) >= module.LONGEST_DELAY / 2


def test_wake_cuts_a_pause_short() -> None:
    calls = threading.Semaphore(0)

    def step() -> float:
        calls.release()
        return 3600.0

    duty = Duty("test", step)
    duty.start()
    assert calls.acquire(timeout=10)
    duty.wake()
    assert calls.acquire(timeout=10)
    duty.stop()
    assert duty.join(10)


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), ValueError("a bug")])
def test_errors_do_not_end_it_nor_can_wakes_make_it_hot(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    done = threading.Event()

    def no_wait(failures: int) -> float:
        waits.append(failures)
        return 0.0

    def step() -> float:
        duty.wake()
        if len(waits) < 3:
            raise error
        done.set()
        return 3600.0

    monkeypatch.setattr(module, "backoff", no_wait)
    duty = Duty("test", step)
    duty.start()
    assert done.wait(10)
    duty.stop()
    assert duty.join(10)
    assert waits == [1, 2, 3]


def test_a_duty_that_must_not_be_late_waits_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = threading.Semaphore(0)

    def step() -> float:
        calls.release()
        raise redis.ConnectionError("away")

    monkeypatch.setattr(module, "backoff", lambda _: 3600.0)
    duty = Duty("test", step, longest=0.001)
    duty.start()
    assert all(calls.acquire(timeout=10) for _ in range(3))
    duty.stop()
    assert duty.join(10)


def test_one_that_never_started_can_be_stopped() -> None:
    duty = Duty("test", lambda: 0.0)
    duty.stop()
    assert duty.join(0)

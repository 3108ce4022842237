"""A sleep of the machine and a stopped process are told from work, waiting and slow clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from mlxq_worker.queue.standstill import Moment, Standstill

LEAST = 30.0


class Clocks:
    def __init__(self) -> None:
        self.now = Moment(1e9, 50.0, 7.0)

    def __call__(self) -> Moment:
        return self.now

    def pass_by(self, wall: float, steady: float, computed: float = 0.0) -> None:
        self.now = Moment(
            self.now.wall + wall, self.now.steady + steady, self.now.computed + computed
        )


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def standstill(clocks: Clocks) -> Standstill:
    return Standstill(LEAST, clocks)


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        pytest.param((3600, 1, 0.5), 3599, id="the machine slept"),
        pytest.param((3600, 3600, 0.5), 3600, id="the process was stopped"),
        pytest.param((31, 31, 31), 0, id="a call let no other thread run"),
        pytest.param((120, 120, 900), 0, id="many cores computed"),
        pytest.param((1, 1, 0.0), 0, id="idle"),
        pytest.param((20, 20, 0.0), 0, id="a short stop"),
        pytest.param((-3600, 1, 0.5), 0, id="the wall clock was set back"),
        pytest.param((16, 1, 0.5), 0, id="the wall clock was set right by seconds"),
    ],
)
def test_what_is_a_standstill(
    clocks: Clocks, standstill: Standstill, passed: tuple[float, float, float], expected: float
) -> None:
    clocks.pass_by(*passed)
    assert standstill.look() == pytest.approx(expected)
    assert standstill.woke_within(5) == (expected > 0)


def test_it_is_told_until_somebody_knows(clocks: Clocks, standstill: Standstill) -> None:
    clocks.pass_by(3600, 1)
    slept = standstill.look()
    clocks.pass_by(1, 1)
    assert standstill.look() == slept
    clocks.pass_by(100, 1)
    standstill.told(slept)
    assert standstill.look() == pytest.approx(99)
    standstill.told(standstill.look())
    assert standstill.look() == 0


def test_waking_is_remembered_for_a_while(clocks: Clocks, standstill: Standstill) -> None:
    assert not standstill.woke_within(1e9)
    clocks.pass_by(3600, 1)
    standstill.look()
    clocks.pass_by(10, 10, 10)
    assert standstill.woke_within(10)
    clocks.pass_by(1, 1)
    assert not standstill.woke_within(10)


def test_days_of_drift_are_no_sleep(clocks: Clocks, standstill: Standstill) -> None:
    for _ in range(1000):
        clocks.pass_by(1.05, 1, 0.5)
        assert standstill.look() == 0


PROGRAM = """
import time
from mlxq_worker.queue.standstill import Standstill
standstill = Standstill(0.5)
print("ready", flush=True)
while not (slept := standstill.look()):
    time.sleep(0.01)
print(slept, flush=True)
"""


def test_a_stopped_process_knows_when_it_goes_on() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(child.pid, signal.SIGCONT)
        assert float(child.stdout.readline()) > 0.5

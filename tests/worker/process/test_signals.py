"""Stop signals are counted, and nothing else."""

from __future__ import annotations

import os
import signal

from mlxq_worker.process.signals import StopSignals


def test_both_signals_count_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert signals.count == 0
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert signals.count == 2
    assert signal.getsignal(signal.SIGTERM) is before

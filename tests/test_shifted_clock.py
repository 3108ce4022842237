"""Every wall clock of a shifted process is wrong by as much; what it measures is not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("shifted_clock.py")
CLOCKS = """
import datetime, json, sys, time
from datetime import date, datetime as stamp
import pydantic

class Dated(pydantic.BaseModel):
    at: stamp

utc = datetime.timezone.utc
print(json.dumps({
    "monotonic": time.monotonic(),
    "arguments": sys.argv[1:],
    "clocks": [
        time.time(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME),
        time.mktime(time.localtime()), time.mktime(time.strptime(time.ctime())),
        stamp.now().timestamp(), stamp.now(utc).timestamp(), stamp.today().timestamp(),
        Dated(at=stamp.now(utc)).at.timestamp(), float(time.strftime("%s")),
    ],
    "day": date.today().isoformat(),
    "kinds": [isinstance(stamp.fromtimestamp(0), stamp), isinstance(stamp.now(), date)],
}))
"""


@pytest.mark.parametrize("seconds", [800_000.0, -800_000.0, 0.0])
def test_all_clocks_are_shifted(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "clocks.py").write_text(CLOCKS)
    command = [sys.executable, "-P", str(PROGRAM), str(seconds), "clocks", "--of", "it"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    said = json.loads(done.stdout)
    wrong = time.time() + seconds
    assert all(abs(clock - wrong) < 3600 for clock in said["clocks"]), said
    assert abs(said["monotonic"] - time.monotonic()) < 3600
    days = (wrong - 3600, wrong + 3600)
    assert said["day"] in {time.strftime("%Y-%m-%d", time.localtime(day)) for day in days}
    assert said["kinds"] == [True, True]
    assert said["arguments"] == ["--of", "it"]

"""The run of ``python -m chaos`` in a short form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = "MLXQ_TEST_SHORT" in os.environ
QUOTAS = {"jobs": 60, "kills": 6, "restarts": 2, "cuts": 6, "templates": 24}
QUOTAS |= {"halves": 2, "slow": 1, "idle": 1, "flush": 1, "freezes": 1}
LONGER = {"jobs": 300, "kills": 30, "restarts": 5, "cuts": 12, "templates": 48}
LONGER |= {"halves": 8, "slow": 5, "idle": 4, "flush": 2, "freezes": 4}
DONE = {
    "jobs resumed in the middle": 1,
    "ids used again after expiry": 1,
    "workers 9 to 10 days ahead": 1,
    "workers 9 to 10 days behind": 1,
    "producers with such clocks": 2,
    "requests cut in the middle": 1,
    "replies cut in the middle": 1,
}


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_nothing_is_lost_doubled_or_wrong(tmp_path: Path) -> None:
    quotas = QUOTAS if SHORT else LONGER
    options = [word for name, least in quotas.items() for word in (f"--{name}", str(least))]
    command = [sys.executable, "-m", "chaos", "--json", "--keep", str(tmp_path), *options]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["jobs"] >= quotas["jobs"]
    assert figures["worker kills (SIGKILL)"] >= quotas["kills"]
    assert figures["server restarts"] + figures["server kills"] >= quotas["restarts"]
    assert figures["replies swallowed"] + figures["cuts"] >= quotas["cuts"]
    assert figures["worker freezes beyond the lease"] >= quotas["freezes"]
    assert figures["slow links"] >= quotas["slow"]
    assert figures["limits on idle connections"] >= quotas["idle"]
    assert figures["FLUSHALL"] >= quotas["flush"]
    assert {name: figures[name] for name, least in DONE.items() if figures[name] < least} == {}

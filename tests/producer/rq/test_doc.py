"""What docs/rq.md shows in Python works as it stands."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rq import Queue

from mlxq_schemas import Keys
from worker_process import eventually

PAGE = (Path(__file__).parents[3] / "docs" / "rq.md").read_text()
WAIT, CALL_BACK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def run(server, queue, rq_url, rq_client, monkeypatch):
    """Runs a block with the test's server and queue."""
    app: Any = types.ModuleType("myapp")
    app.store = app.next = print
    monkeypatch.setitem(sys.modules, "myapp", app)

    def block(code: str, url: str) -> dict[str, Any]:
        code = code.replace("Redis()", f"Redis.from_url({url!r})").replace(
            "{captions}", f"{{{queue}}}"
        )
        names: dict[str, Any] = {}
        exec(compile(code, "docs/rq.md", "exec"), names)
        return names

    return block


def test_waiting(run, rq_url, rq_client, redis_client, queue, rq):
    names = run(WAIT, rq_url)
    running = rq("worker", "-w", "mlxq_producer.rq.Intake", "captions")
    eventually(lambda: redis_client.xlen(Keys(queue).jobs()) == 1, running.log)
    assert names["job"].get_status() == "started"
    assert names["after"].get_status() == "deferred"
    names["job"].delete()
    eventually(lambda: rq_client.hlen(Keys(queue).rq) == 0, running.log)


def test_calling_back(run, server, rq_url, mlxq_worker, producer, redis_client):
    mlxq_worker()
    ids = [producer.submit(prompt=f"{number}") for number in range(3)]
    for job_id in ids:
        producer.result(job_id, wait=30)
    names = run(CALL_BACK, server.url)
    assert names["pass_on"]("0") == 0
    assert names["pass_on"](">") == 3
    assert names["pass_on"](">") == names["pass_on"]("0") == 0
    other = Queue("other", connection=redis_client, serializer="json")
    assert sorted(other.get_job_ids()) == sorted(f"next-{job_id}" for job_id in ids)
    other.empty()
    redis_client.delete(*redis_client.keys("rq:*"))

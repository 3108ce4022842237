"""A large file through real processes: right counts, rows that OpenAI's types take, flat memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion

from batch_files import request
from worker_process import WorkerProcess

LINES = 2_000 if "MLXQ_TEST_SHORT" in os.environ else 50_000
FEW = 1_000
PEAK_GROWTH = 24 * 1024 * 1024
# From a small process: on Linux a child's peak is never below that of its parent.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def write(path: Path, lines: int) -> None:
    with path.open("w") as file:
        for i in range(lines):
            line = "{oops" if i % 100 == 99 else json.dumps(request(f"line-{i}", f"text {i}"))
            file.write(f"{line}\n")


def run(folder: Path, name: str, queue: str, url: str) -> int:
    """Run a batch in a process of its own; returns its peak memory in bytes."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": url, "MLXQ_QUEUE": queue}
    options = ["-o", f"{name}.out.jsonl", "--errors", f"{name}.err.jsonl", "--window", "500"]
    command = [sys.executable, "-m", "mlxq_producer", "batch", "run", f"{name}.jsonl", *options]
    measured = [sys.executable, "-c", MEASURE, *command]
    done = subprocess.run(
        measured, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 3
    return int(done.stdout.split()[-1]) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_large_file(server, queue, tmp_path):
    write(tmp_path / "few.jsonl", FEW)
    write(tmp_path / "many.jsonl", LINES)
    options = ["--redis-url", server.url, "--queue", queue, "--model", "noop:", "--max-rows", "64"]
    worker = WorkerProcess(tmp_path / "worker.log", *options)
    try:
        worker.wait_ready()
        few = run(tmp_path, "few", queue, server.url)
        many = run(tmp_path, "many", queue, server.url)
    finally:
        worker.close()
    print(f"peak memory: {few:,} bytes for {FEW:,} lines, {many:,} for {LINES:,}")
    assert many - few < PEAK_GROWTH
    texts: dict[str, str | None] = {}
    with (tmp_path / "many.out.jsonl").open() as file:
        for line in file:
            row = json.loads(line)
            body = ChatCompletion.model_validate(row["response"]["body"], strict=True)
            assert row["custom_id"] not in texts
            texts[row["custom_id"]] = body.choices[0].message.content
    assert texts == {f"line-{i}": f"text {i}" for i in range(LINES) if i % 100 != 99}
    errors = [json.loads(line) for line in (tmp_path / "many.err.jsonl").read_text().splitlines()]
    assert len(errors) == LINES // 100
    assert {row["error"]["code"] for row in errors} == {"invalid_json_line"}
    batch = json.loads((tmp_path / "many.out.jsonl.batch").read_text())
    expected = {"total": LINES, "completed": LINES - LINES // 100, "failed": LINES // 100}
    assert (batch["status"], batch["request_counts"]) == ("completed", expected)

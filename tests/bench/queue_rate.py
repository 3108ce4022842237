"""Jobs per second through one queue, without a model: ``python -m bench.queue_rate``.

A real server, and workers that echo prompts. They are stopped while the queue is filled, then all
go on at once; the clock runs from there until the last result is stored. Only the server and the
workers run meanwhile. CPU seconds are theirs, so that a busy machine shows.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import redis

from mlxq_producer import Producer
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Keys
from worker_process import WorkerProcess

QUEUE = "rate"
OPTIONS = ("--model", "noop:", "--max-rows", "128", "--look-ahead", "128", "--log-level", "warning")


@dataclass(frozen=True)
class Rate:
    """One round; rates in jobs per second, CPU times in microseconds a job (0: not known)."""

    submitted: float
    done: float
    worker_cpu: float
    server_cpu: float


def measure(jobs: int, workers: int, chars: int, options: Sequence[str] = OPTIONS) -> Rate:
    """One round, with a fresh server and fresh workers."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(redis.Redis.from_url(server.url))
        arguments = ("--redis-url", server.url, "--queue", QUEUE, *options)
        staff = [
            stack.enter_context(_worker(folder / f"{n}.log", arguments)) for n in range(workers)
        ]
        _await_workers(client, workers)
        for worker in staff:
            worker.process.send_signal(signal.SIGSTOP)
        began = time.perf_counter()
        with Producer(server.url, QUEUE) as producer:
            text = "abcdefgh" * (chars // 8 + 1)
            producer.submit_many({"prompt": text[:chars]} for _ in range(jobs))
        submitted = jobs / (time.perf_counter() - began)
        before = sum(map(_cpu, staff)), _server_cpu(client)
        began = time.perf_counter()
        for worker in staff:
            worker.process.send_signal(signal.SIGCONT)
        while client.xlen(Keys(QUEUE).results) < jobs:
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        after = sum(map(_cpu, staff)), _server_cpu(client)
    spent = [1e6 * (b - a) / jobs for a, b in zip(before, after, strict=True)]
    return Rate(submitted, jobs / seconds, *spent)


@contextmanager
def _worker(log: Path, arguments: Sequence[str]) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(log, *arguments)
    try:
        yield worker
    finally:
        worker.close()


def _await_workers(client: redis.Redis, number: int) -> None:
    while client.zcard(Keys(QUEUE).workers) < number:
        time.sleep(0.02)


def _cpu(worker: WorkerProcess) -> float:
    """CPU seconds of a process so far, where the system tells."""
    stat = Path(f"/proc/{worker.process.pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _server_cpu(client: redis.Redis) -> float:
    info = client.info("cpu")
    return info["used_cpu_sys"] + info["used_cpu_user"]


def main() -> None:
    """Print each round and the median."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue_rate", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chars", type=int, default=8, help="length of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    rounds = [measure(options.jobs, options.workers, options.chars) for _ in range(options.rounds)]
    if options.json:
        print(json.dumps([asdict(rate) for rate in rounds]))
        return
    print("| submitted/s | done/s | worker CPU us/job | server CPU us/job |\n|---|---|---|---|")
    for rate in rounds:
        print("| " + " | ".join(f"{value:.0f}" for value in asdict(rate).values()) + " |")
    print(f"median: {statistics.median(rate.done for rate in rounds):.0f} jobs/s")


if __name__ == "__main__":
    main()

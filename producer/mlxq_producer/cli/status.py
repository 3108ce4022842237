"""``mlxq status``: one look at a queue."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.client import Producer
from mlxq_producer.queue_status import QueueStatus, WorkerStatus
from mlxq_schemas import DEFAULT_QUEUE

WORKER_COLUMNS = ("model", "state", "rows", "max_rows", "waiting", "done", "failed", "tokens_per_s")


def status(redis_url: RedisUrl = None, queue: Queue = DEFAULT_QUEUE, as_json: Json = False) -> None:
    """Show what waits, what runs, and who works."""
    with Producer(redis_url, queue) as producer:
        found = producer.status()
    if as_json:
        print_json(found.as_dict())
    elif sys.stdout.isatty():
        _print_tables(found)
    else:
        _print_lines(found)


def counts(found: QueueStatus) -> dict[str, str]:
    """The counts of a queue, as people read them."""
    depth = ", ".join(f"{name} {number}" for name, number in found.depth.items())
    oldest = "-" if found.oldest_waiting is None else f"{found.oldest_waiting:.1f} s"
    return {
        "waiting": str(found.waiting),
        "in flight": str(found.in_flight),
        "delayed": str(found.delayed),
        "dead": str(found.dead),
        "oldest waiting": oldest,
        "depth by priority": depth,
        "jobs per second": f"{found.jobs_per_s:.1f}",
        "tokens per second": f"{found.tokens_per_s:.1f}",
        "workers": str(len(found.workers)),
    }


def _print_tables(found: QueueStatus) -> None:
    console = Console()
    table = Table(title=f"queue {found.queue}", show_header=False)
    for name, value in counts(found).items():
        table.add_row(name, value)
    console.print(table)
    if found.workers:
        rows = Table("worker", *WORKER_COLUMNS)
        for one in found.workers:
            rows.add_row(one.name, *_cells(one))
        console.print(rows)


def _print_lines(found: QueueStatus) -> None:
    print(f"queue: {found.queue}")
    for name, value in counts(found).items():
        print(f"{name}: {value}")
    for one in found.workers:
        cells = zip(WORKER_COLUMNS, _cells(one), strict=True)
        print(f"worker {one.name}: {', '.join(f'{name} {value}' for name, value in cells)}")


def _cells(one: WorkerStatus) -> list[str]:
    return [one.fields.get(name, "-") for name in WORKER_COLUMNS]

"""``mlxq demo``: server, worker and producer as separate processes, on bundled samples."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from redis.exceptions import RedisError

from mlxq_producer.async_client import AsyncProducer
from mlxq_producer.cli.demo_end import entry, print_end
from mlxq_producer.cli.demo_report import Row, summarise
from mlxq_producer.cli.failures import EXIT_OTHER, EXIT_TERMINATED, complain
from mlxq_producer.cli.options import Json
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.times import duration
from mlxq_producer.cli.view import Board, Counts, View, live_view
from mlxq_producer.connection import URL_VARIABLE, connect_async
from mlxq_producer.embedded import EmbeddedServer
from mlxq_producer.processes import ChildProcess
from mlxq_producer.worker_command import worker_command, worker_end, worker_environment
from mlxq_schemas import Keys, new_id
from mlxq_schemas.errors import MlxqError, WaitTimeout
from mlxq_schemas.plain import to_json

_POLL_SECONDS: Final = 0.1


class DemoFailed(MlxqError):
    """A process of the demo ended before its work was done."""

    code = "demo"


def demo(
    timeout: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=duration, help="Give up after this long."),
    ] = "5m",  # pyright: ignore[reportArgumentType] - typer parses it
    as_json: Json = False,
) -> None:
    """Caption the bundled sample images: starts a server, a worker and a producer, and ends them.

    Uses the server of MLXQ_REDIS_URL if that is set, on a queue of its own.
    """
    from mlxq_producer.samples import sample_jobs  # noqa: PLC0415 - no other command needs them

    rows = [Row.of(sample) for sample in sample_jobs()]
    board = Board("the demo", lambda: _counts(rows), total=len(rows))
    try:
        with View(board) if as_json else live_view(board) as view:
            asyncio.run(_run(rows, view, timeout))
    except asyncio.CancelledError as error:
        raise typer.Exit(EXIT_TERMINATED) from error
    summary = summarise(rows)
    if as_json:
        print_json({"jobs": [row.as_dict() for row in rows], "summary": summary.as_dict()})
    else:
        print_end(summary, rows)
    if summary.reason is not None:
        if not as_json:
            complain(DemoFailed.code, summary.reason)
        raise typer.Exit(EXIT_OTHER)


async def _run(rows: list[Row], view: View, seconds: float) -> None:
    """Run the demo to its end; whatever happens, nothing of it stays behind."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - for the type checker: a coroutine that runs has one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlxq-demo-")))
            view.say("starting a server and a worker")
            url = os.environ.get(URL_VARIABLE) or stack.enter_context(EmbeddedServer()).url
            queue = await stack.enter_async_context(_fresh_queue(url))
            where = worker_environment(url, queue)
            worker = ChildProcess(worker_command(), folder / "worker.log", where)
            stack.enter_context(worker)
            producer = await stack.enter_async_context(AsyncProducer(url, queue))
            await _beside(_worker_is_up(producer), _must_stay("worker", worker))
            view.begin()
            work = _caption(rows, view, producer, where, folder)
            await _beside(work, _must_stay("worker", worker))
    except TimeoutError as error:
        open_jobs = sum(not row.ended for row in rows)
        raise WaitTimeout(
            f"the demo did not end within {seconds:g} s ({open_jobs} of {len(rows)} jobs open): "
            "give it longer with --timeout"
        ) from error


async def _caption(
    rows: list[Row], view: View, producer: AsyncProducer, where: dict[str, str], folder: Path
) -> None:
    """Submit all jobs from another process, and follow them to their ends."""
    jobs = folder / "jobs.jsonl"
    jobs.write_text("".join(to_json(row.job()) + "\n" for row in rows), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "mlxq_producer", "submit", "--job", str(jobs)]
    with ChildProcess(command, folder / "producer.log", where) as submitter:
        await _beside(_follow(rows, view, producer), _must_succeed("producer", submitter))


async def _follow(rows: list[Row], view: View, producer: AsyncProducer) -> None:
    by_id = {row.id: row for row in rows}
    async for event in producer.follow_many(by_id, wait_for_job=True):
        row = by_id[event.job]
        row.apply(event)
        if row.started or row.ended:
            view.show(entry(row))


def _counts(rows: list[Row]) -> Counts:
    right = sum(bool(row.ended) and row.right for row in rows)
    wrong = sum(bool(row.ended) and not row.right for row in rows)
    return Counts(right, wrong, tokens=sum(row.tokens for row in rows))


async def _worker_is_up(producer: AsyncProducer) -> None:
    while not any(worker.serving for worker in (await producer.status()).workers):  # noqa: ASYNC110 - in another process
        await asyncio.sleep(_POLL_SECONDS)


async def _beside(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Do ``work``; what ``watch`` raises meanwhile ends it."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(watch)
            await work
            watcher.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _must_stay(name: str, process: ChildProcess) -> None:
    raise _failed(name, process, await _end_of(process))


async def _must_succeed(name: str, process: ChildProcess) -> None:
    if status := await _end_of(process):
        raise _failed(name, process, status)


async def _end_of(process: ChildProcess) -> int:
    while (status := process.poll()) is None:  # noqa: ASYNC110 - another process sets no event
        await asyncio.sleep(_POLL_SECONDS)
    return status


def _failed(name: str, process: ChildProcess, status: int) -> DemoFailed:
    end = worker_end(status) if name == "worker" else f"the {name} ended with status {status}"
    return DemoFailed(f"{end}; the end of its log:\n{process.log_tail()}")


@asynccontextmanager
async def _fresh_queue(url: str) -> AsyncGenerator[str]:
    """A queue name of our own; its keys are removed at the end."""
    name = f"demo-{new_id()[:12]}"
    try:
        yield name
    finally:
        with suppress(RedisError):  # a server that is gone is told of by whoever used it
            await _remove_queue(url, name)


async def _remove_queue(url: str, name: str) -> None:
    async with connect_async(url, name) as client:
        async for key in client.scan_iter(f"{Keys(name).prefix}:*", count=1000):
            await client.unlink(key)

"""A worker that does what a test tells it, by the contract's own scripts, over a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from mlxq_producer import Producer
from mlxq_producer.cli import app
from mlxq_schemas import GROUP, Failed, Finished, Job, Keys, Started, Token
from mlxq_schemas import Result as JobResult
from mlxq_schemas.scripts import ScriptName, script
from mlxq_schemas.wire import decode_job, encode_event

TTL = 3600


class ScriptedWorker:
    """The worker's side of the contract, a step at a time."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self.client = client
        self.keys = Keys(queue)
        self.name = "scripted"
        self.entries: dict[str, tuple[str, bytes, Any]] = {}

    def claim(self) -> Job:
        """Read the next entry and take its job."""
        for stream in self.keys.all_jobs():
            if not self.client.exists(stream):
                continue
            if not self.client.xinfo_groups(stream):
                self.client.xgroup_create(stream, GROUP, "0")
            read: Any = self.client.xreadgroup(GROUP, self.name, {stream: ">"}, count=1)
            for _, [(entry, fields)] in read:
                return self._take(stream, entry, fields[b"id"].decode())
        raise AssertionError("no job waits")

    def _take(self, stream: str, entry: bytes, job_id: str) -> Job:
        k = self.keys
        keys = [k.job(job_id), k.events(job_id), k.result(job_id), k.stray(job_id), k.dead]
        args = [job_id, self.name, stream, entry, GROUP, "new", TTL, TTL]
        status, epoch, *rest = self.run("claim", [*keys, *k.all_jobs()], args)
        assert status == b"ok"
        self.entries[job_id] = (stream, entry, epoch)
        job = decode_job(rest[3], job_id)
        self.append(job_id, Started(job=job_id, worker=self.name))
        return job

    def append(self, job_id: str, *events: Any) -> int:
        """Publish events; returns the next seq."""
        keys = [self.keys.job(job_id), self.keys.events(job_id)]
        args = [self.entries[job_id][2], self.keys.tokens(job_id), *map(encode_event, events)]
        return self.run("append", keys, args)

    def tokens(self, job_id: str, *texts: str) -> None:
        for text in texts:
            self.append(job_id, Token(job=job_id, text=text))

    def lose_messages(self, job_id: str, *texts: str) -> None:
        """Publish token events that reach the stream but no subscriber."""
        keys = [self.keys.job(job_id), self.keys.events(job_id)]
        events = [encode_event(Token(job=job_id, text=text)) for text in texts]
        self.run("append", keys, [self.entries[job_id][2], "nowhere", *events])

    def finish(self, job_id: str, text: str = "", *, channel: str | None = None) -> None:
        end = Finished(job=job_id, reason="stop", text=text)
        result = JobResult(job=job_id, type="finished", reason="stop", text=text)
        self._end(job_id, end, result, channel=channel)

    def fail(self, job_id: str, code: str, message: str) -> None:
        end = Failed(job=job_id, code=code, message=message)
        result = JobResult(job=job_id, type="failed", code=code, message=message)
        self._end(job_id, end, result, code, message)

    def _end(
        self,
        job_id: str,
        end: Any,
        result: Any,
        code: str = "",
        message: str = "",
        channel: str | None = None,
    ) -> None:
        stream, entry, epoch = self.entries.pop(job_id)
        keys = self.keys
        names = [keys.job(job_id), keys.events(job_id), keys.result(job_id)]
        names += [keys.results, keys.dead, stream]
        args = [epoch, job_id, end.type, encode_event(end), encode_event(result)]
        args += [channel or keys.tokens(job_id), TTL, GROUP, entry]
        assert self.run("finish", names, [*args, code, message, TTL]) == 1

    def run(self, name: ScriptName, keys: list[str], args: list[Any]) -> Any:
        return self.client.eval(script(name), len(keys), *keys, *args)


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> ScriptedWorker:
    """A scripted worker on the test's queue."""
    return ScriptedWorker(redis_client, queue)


@pytest.fixture
def producer(server: Any, queue: str) -> Iterator[Producer]:
    """A producer on the test's queue."""
    with Producer(server.url, queue) as made:
        yield made


Mlxq = Callable[..., Result]


@pytest.fixture
def mlxq(server: Any, queue: str, monkeypatch: pytest.MonkeyPatch) -> Mlxq:
    """Runs the command in this process, on the test's queue."""
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)

    def run(*args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(args), input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run

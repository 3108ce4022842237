"""The whole way with the model from the package: what goes in as jobs comes out as if alone."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer import Producer
from mlxq_producer.embedded import EmbeddedServer
from mlxq_producer.samples import sample_jobs
from mlxq_schemas import Job, Keys, Started, Token
from mlxq_schemas.events import UNSENT
from mlxq_schemas.wire import decode_result
from mlxq_worker.build import build_backend
from mlxq_worker.config import WorkerConfig
from pictures import random_picture
from worker_process import PATIENCE, StartWorker, eventually

PROMPTS = (
    "Describe the image.",
    "How many shapes are there?",
    "Describe the image in detail.",
    "What colour is the circle?",
)


def png(rng: random.Random) -> bytes:
    file = io.BytesIO()
    random_picture(rng).save(file, "PNG")
    return file.getvalue()


def image_jobs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Jobs with different prompts, lengths and pictures; some are sampled, without a seed."""
    rng = random.Random(seed)
    return [
        {
            "id": f"j{n}",
            "prompt": PROMPTS[n % len(PROMPTS)],
            "images": [png(rng)],
            "max_tokens": rng.choice((3, 20, 60)),
            "temperature": 1.0 if n % 4 == 3 else 0.0,
            "stream": n % 6 != 4,
            "logprobs": 1,
        }
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    """The model in this process, one row at a time."""
    made = build_backend(WorkerConfig(max_rows=1, name="solo"))
    yield made
    made.generator.close()


@dataclass
class Answer:
    """What a job said. Equal if log probabilities (nats) differ by rounding at most."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    reason: str | None = None

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answer):
            return NotImplemented
        same = (self.text, self.ids, self.reason) == (other.text, other.ids, other.reason)
        return same and self.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.fixture
def alone(backend, redis_client: redis.Redis, queue: str):
    """The answer to a job that has ended, computed here and alone, with the seed of its result."""
    keys = Keys(queue)

    def answer(job_id: str) -> Answer:
        fields = msgpack.unpackb(redis_client.hget(keys.job(job_id), "spec"))
        result = decode_result(redis_client.get(keys.result(job_id)))
        seed = result.provenance.sampler.get("seed") if result.provenance else None
        fields["sampling"] = {**fields.get("sampling", {}), "seed": seed}
        request = backend.prepare(Job(**fields), lambda sha: redis_client.get(keys.blob(sha)))
        backend.generator.insert([request])
        found = Answer()
        while backend.generator.has_work():
            for response in backend.generator.next():
                found.text += response.text
                found.ids += [] if response.token is None else [response.token]
                found.logprobs += [response.logprobs.logprob] if response.logprobs else []
                found.reason = response.finish_reason
        return found

    return answer


@pytest.fixture
def told(redis_client: redis.Redis, queue: str):
    """The answer to a job as its events tell it; its story is checked."""

    def answer(job_id: str) -> Answer:
        events = [
            msgpack.unpackb(fields[b"e"], strict_map_key=False)
            for _, fields in redis_client.xrange(Keys(queue).events(job_id))
        ]
        assert [event["seq"] for event in events] == list(range(len(events)))
        ends = [event for event in events if event["type"] == "finished"]
        assert ends == events[-1:]
        [end] = ends
        tokens = [event for event in events if event["type"] == "token"]
        text = "".join(event["text"] for event in tokens)
        ids = [i for event in tokens for i in event["ids"]]
        scored = [one for event in tokens for one in event["logprobs"]]
        assert text == end["text"]
        assert len(ids) == end["usage"]["completion_tokens"]
        assert [one["id"] for one in scored] == ids
        return Answer(text, ids, [one["logprob"] for one in scored], end["reason"])

    return answer


@pytest.mark.slow
def test_64_jobs_at_once_say_what_each_says_alone(
    start_worker: StartWorker, producer: Producer, alone, told
) -> None:
    jobs = image_jobs(64)
    start_worker(model=None)
    for job in jobs:
        producer.submit(**job)
    results = {job["id"]: producer.result(job["id"], wait=PATIENCE * 2) for job in jobs}
    assert {name for name, result in results.items() if not result.ok} == set()
    said = {name: told(name) for name in results}
    assert said == {name: alone(name) for name in results}
    assert {name: result.text for name, result in results.items()} == {
        name: answer.text for name, answer in said.items()
    }
    assert len({answer.text for answer in said.values()}) > 16


def test_64_jobs_and_a_worker_killed_among_them(
    start_worker: StartWorker,
    producer: Producer,
    redis_client: redis.Redis,
    queue: str,
    alone,
    told,
) -> None:
    jobs = image_jobs(64, seed=1)
    options = ("--lease", "1.5", "--max-rows", "6")
    victim, _ = (start_worker(*options, model=None) for _ in range(2))
    for job in jobs:
        producer.submit(**job)
    eventually(lambda: redis_client.xlen(Keys(queue).results) >= 8, "progress")
    victim.kill()
    results = {job["id"]: producer.result(job["id"], wait=PATIENCE * 2) for job in jobs}
    assert {name: told(name) for name in results} == {name: alone(name) for name in results}
    rows = [fields[b"id"] for _, fields in redis_client.xrange(Keys(queue).results)]
    assert sorted(rows) == sorted(name.encode() for name in results)


def test_a_sampled_job_without_a_seed_goes_on_exactly_in_another_worker(
    start_worker: StartWorker, producer: Producer, alone, told
) -> None:
    first = start_worker("--lease", "1.5", model=None)
    fields = {"prompt": "Tell me a story", "temperature": 1.0, "ignore_eos": True, "logprobs": 1}
    producer.submit(id="a", max_tokens=400, **fields)
    producer.submit(id="b", max_tokens=40, stream=False, **fields)
    reader = producer.follow("a")
    while not isinstance(next(reader), Token):
        pass
    first.kill()
    start_worker("--lease", "1.5", model=None)
    results = {name: producer.result(name, wait=PATIENCE * 2) for name in "ab"}
    assert results["a"].attempt > 1
    assert {name: told(name) for name in "ab"} == {name: alone(name) for name in "ab"}
    assert not results["a"].text.startswith(results["b"].text)


def test_a_job_whose_tokens_are_all_there_only_ends(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str, told
) -> None:
    """As one is found whose worker wrote the last text, and died before it wrote the end."""
    start_worker(model=None)
    [job] = image_jobs(1)
    keys, dead = Keys(queue), LuaWorker(redis_client, queue, "dead")
    for reason, most in (("stop", 60), ("length", 3)):
        cut = f"cut-{reason}"
        producer.submit(**{**job, "id": reason, "max_tokens": most})
        whole = producer.result(reason, wait=PATIENCE)
        assert whole.reason == reason
        assert whole.provenance
        spec = msgpack.unpackb(redis_client.hget(keys.job(reason), "spec"))
        state = {"state": "running", "epoch": 1, "attempt": 1, "worker": "dead"}
        packed = msgpack.packb({**spec, "id": cut})
        redis_client.hset(keys.job(cut), mapping={**state, "spec": packed})
        tokens = [event for event in producer.follow(reason) if isinstance(event, Token)]
        published = [token.model_copy(update={"job": cut, "seq": UNSENT}) for token in tokens]
        dead.append(cut, 1, Started(job=cut, model=whole.provenance.model), *published)
        redis_client.xadd(keys.jobs(), {"id": cut})
        result = producer.result(cut, wait=PATIENCE)
        assert told(cut) == told(reason)
        assert (result.text, result.reason, result.attempt) == (whole.text, reason, 2)
        assert result.usage.completion_tokens == whole.usage.completion_tokens
        assert result.timing.decode == result.timing.prefill == 0.0


def bad_files(folder: Path) -> dict[str, str]:
    """Files that are no pictures for a model, and the code that each job must end with."""
    whole = io.BytesIO()
    random_picture(random.Random(2)).resize((400, 300)).save(whole, "JPEG")
    (folder / "truncated.jpg").write_bytes(whole.getvalue()[: whole.tell() // 2])
    (folder / "text.png").write_text("not a picture")
    (folder / "dot.png").write_bytes(plain_png(1, 1))
    (folder / "huge.png").write_bytes(plain_png(20_000, 20_000))
    return {
        "truncated.jpg": "media_invalid",
        "text.png": "media_invalid",
        "dot.png": "media_too_small",
        "huge.png": "media_too_large",
        "missing.png": "media_not_found",
    }


def plain_png(width: int, height: int) -> bytes:
    """A black grey-scale PNG, packed row by row: 20,000 rows squared would fill the memory."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(1)
    row = bytes(width + 1)
    pixels = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def test_bad_pictures_fail_alone(
    start_worker: StartWorker,
    producer: Producer,
    redis_client: redis.Redis,
    queue: str,
    tmp_path: Path,
) -> None:
    bad = bad_files(tmp_path)
    good = image_jobs(12, seed=3)
    start_worker("--media-root", str(tmp_path), model=None)
    for name in bad:
        redis_client.hset(
            Keys(queue).job(name),
            "spec",
            msgpack.packb({"prompt": "Describe the image.", "images": [str(tmp_path / name)]}),
        )
        redis_client.xadd(Keys(queue).jobs(), {"id": name})
        producer.submit(**good.pop())
    for name, code in bad.items():
        result = producer.result(name, wait=PATIENCE)
        assert (result.type, result.code) == ("failed", code)
        assert name in (result.message or "")
    for job in image_jobs(12, seed=3)[-len(bad) :]:
        assert producer.result(job["id"], wait=PATIENCE).ok
    dead = {
        fields[b"id"].decode(): fields[b"code"].decode()
        for _, fields in redis_client.xrange(Keys(queue).dead)
    }
    assert dead == bad


def test_logprobs_come_with_their_tokens(start_worker: StartWorker, producer: Producer) -> None:
    [job] = image_jobs(1)
    start_worker(model=None)
    producer.submit(**{**job, "logprobs": 3})
    tokens = [event for event in producer.follow("j0") if isinstance(event, Token)]
    assert tokens
    for event in tokens:
        assert event.logprobs
        assert [entry.id for entry in event.logprobs] == event.ids
        for entry in event.logprobs:
            assert len(entry.top) == 3
            assert entry.logprob == pytest.approx(max(entry.top.values()), abs=1e-5)
            assert entry.id in entry.top


@pytest.mark.slow
def test_the_demo(server: EmbeddedServer, redis_client: redis.Redis) -> None:
    """As a newcomer runs it, but with a server at hand."""
    before = set(redis_client.scan_iter())
    done = subprocess.run(
        [sys.executable, "-m", "mlxq_producer", "demo", "--json"],
        capture_output=True,
        timeout=110,
        check=True,
    )
    report = json.loads(done.stdout)
    assert len(report["jobs"]) == len(sample_jobs())
    summary = report["summary"]
    assert summary["right"] == summary["expected"] >= 23
    assert summary["failed"] == summary["expected_failures"] == 1
    assert set(redis_client.scan_iter()) == before


def test_a_stored_result_can_be_read_without_our_code(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    channel = redis_client.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(Keys(queue).tokens("j0"))
    start_worker(model=None)
    producer.submit(**image_jobs(1)[0])
    events: list[dict[str, Any]] = []
    for message in channel.listen():
        events.append(msgpack.unpackb(message["data"]))
        if events[-1]["type"] == "finished":
            break
    channel.close()
    assert [event["seq"] for event in events] == list(range(len(events)))
    data = redis_client.get(Keys(queue).result("j0"))
    assert msgpack.unpackb(data)["text"] == decode_result(data).text
    assert decode_result(data).text == "".join(e["text"] for e in events if e["type"] == "token")

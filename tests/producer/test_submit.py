"""Submitting: once by id, checked first, with back-pressure, media stored once."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from PIL import Image

from mlxq_producer import AsyncProducer, EmbeddedServer, Producer, SubmitErrors
from mlxq_schemas import ImagePart, Job, Keys, Message, Queued, Sampling, TextPart
from mlxq_schemas.errors import (
    ConfigError,
    Conflict,
    EmptyPrompt,
    InvalidJob,
    MlxqError,
    QueueFull,
    QueueUnavailable,
    RedisFull,
    Unsupported,
)
from mlxq_schemas.wire import decode_event, decode_job


def stored(client: redis.Redis, queue: str, job_id: str) -> Job:
    spec = client.hget(Keys(queue).job(job_id), "spec")
    assert isinstance(spec, bytes)
    return decode_job(spec, job_id)


def blob_of(data: bytes) -> str:
    return f"blob:{hashlib.sha256(data).hexdigest()}"


def test_a_job_is_queued_with_its_spec_and_first_event(producer, redis_client, queue):
    job_id = producer.submit(prompt="hi", max_tokens=7, sampling={"seed": 3}, priority="high")
    assert stored(redis_client, queue, job_id) == Job(
        id=job_id, prompt="hi", sampling=Sampling(max_tokens=7, seed=3), priority="high"
    )
    assert redis_client.xlen(Keys(queue).jobs("high")) == 1
    [(entry, fields)] = redis_client.xrange(Keys(queue).events(job_id))
    assert entry == b"1-0"
    assert isinstance(decode_event(fields[b"e"]), Queued)


def test_the_same_job_is_taken_once(producer, redis_client, queue):
    assert producer.submit(id="a", prompt="hi") == "a"
    assert producer.submit(Job(id="a", prompt="hi")) == "a"
    assert redis_client.xlen(Keys(queue).jobs()) == 1


def test_another_job_of_the_same_id_is_a_conflict(producer):
    producer.submit(id="a", prompt="hi")
    with pytest.raises(Conflict, match="job id a"):
        producer.submit(id="a", prompt="ho")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": "  "}, EmptyPrompt),
        ({}, EmptyPrompt),
        ({"prompt": "x", "tools": []}, Unsupported),
        ({"prompt": "x", "timeout": 0}, InvalidJob),
        ({"prompt": "x", "deadline": 1, "not_before": 2}, InvalidJob),
        ({"prompt": "x", "promt": "y"}, Unsupported),
        ({"prompt": "x", "audios": ["http://x/a.wav"]}, Unsupported),
        ({"prompt": "x", "max_tokens": -1}, InvalidJob),
        ({"prompt": "x", "id": "a b"}, InvalidJob),
        ({"prompt": "x", "images": [3]}, InvalidJob),
        ({"prompt": "x", "sampling": 3, "seed": 1}, InvalidJob),
        ({"prompt": "x", "metadata": {"a": object()}}, InvalidJob),
        ({"messages": ["hi"]}, InvalidJob),
    ],
)
def test_what_no_worker_could_do_is_refused_before_anything_is_written(
    producer, redis_client, queue, fields, error
):
    with pytest.raises(error):
        producer.submit(**fields)
    assert not list(redis_client.scan_iter(f"{Keys(queue).prefix}:*"))


def test_a_full_queue_refuses_and_says_so(server, queue):
    with Producer(server.url, queue, max_depth=2) as producer:
        producer.submit(prompt="1", priority="low")
        producer.submit(id="b", prompt="2")
        with pytest.raises(QueueFull, match="holds 2 jobs of at most 2"):
            producer.submit(prompt="3")
        assert producer.submit(id="b", prompt="2") == "b"


def test_every_kind_of_local_image_is_stored_once_by_content(
    producer, redis_client, queue, tmp_path, monkeypatch
):
    image = Image.new("RGB", (4, 3), "red")
    path = tmp_path / "a b.png"
    image.save(path)
    data = path.read_bytes()
    monkeypatch.chdir(tmp_path)
    job_id = producer.submit(
        prompt="x", images=[path, str(path), "a b.png", path.as_uri(), data, bytearray(data)]
    )
    assert [ref.url for ref in stored(redis_client, queue, job_id).images] == [blob_of(data)] * 6
    keys = list(redis_client.scan_iter(f"{Keys(queue).prefix}:blob:*"))
    assert len(keys) == 1
    assert redis_client.get(keys[0]) == data


def test_a_pillow_image_is_sent_as_png_whatever_its_mode(producer, redis_client, queue):
    image = Image.new("CMYK", (5, 4))
    job_id = producer.submit(prompt="x", images=[image])
    [ref] = stored(redis_client, queue, job_id).images
    data: Any = redis_client.get(Keys(queue).blob(ref.url.removeprefix("blob:")))
    with Image.open(io.BytesIO(data)) as read:
        assert (read.format, read.size) == ("PNG", (5, 4))


def test_media_in_messages_travel_too(producer, redis_client, queue):
    part = {"type": "image_url", "image_url": {"url": b"123", "detail": "auto"}}
    given = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}
    [first, second] = producer.submit_many([given, {"prompt": "x", "images": [b"123"]}])
    for job_id in (first, second):
        [(kind, ref)] = stored(redis_client, queue, job_id).media()
        assert (kind, ref.url) == ("image", blob_of(b"123"))


def test_models_in_messages_travel_too(producer, redis_client, queue, tmp_path):
    (tmp_path / "x.png").write_bytes(b"456")
    content = [ImagePart(image_url=str(tmp_path / "x.png")), TextPart(text="?")]
    message = Message(role="user", content=content)
    for job_id in (
        producer.submit(messages=[message]),
        producer.submit(Job(messages=[message])),
    ):
        assert [ref.url for _, ref in stored(redis_client, queue, job_id).media()] == [
            blob_of(b"456")
        ]


def test_remote_references_are_left_alone(producer, redis_client, queue):
    urls = [
        "https://x/y.png",
        "http://x/y.png",
        "data:image/png;base64,AA",
        "s3://b/k",
        blob_of(b""),
    ]
    job_id = producer.submit(prompt="x", images=urls)
    assert [ref.url for ref in stored(redis_client, queue, job_id).images] == urls


@pytest.mark.parametrize("name", ["missing.png", "", "nul\0.png"])
def test_a_file_that_cannot_be_read_fails_its_job_later(
    producer, redis_client, queue, tmp_path, name
):
    path = f"{tmp_path}/{name}"
    job_id = producer.submit(prompt="x", images=[path])
    [ref] = stored(redis_client, queue, job_id).images
    assert ref.url == path
    assert ref.error is not None
    assert ref.error.code == "media_not_found"


def test_without_inlining_local_paths_become_absolute(server, queue, redis_client, monkeypatch):
    monkeypatch.chdir("/")
    with Producer(server.url, queue, inline_media=False) as producer:
        job_id = producer.submit(prompt="x", images=["a.png", Path("b.png"), b"1"])
    urls = [ref.url for ref in stored(redis_client, queue, job_id).images]
    assert urls == ["/a.png", "/b.png", blob_of(b"1")]


def test_using_a_blob_again_renews_its_ttl_and_sends_no_bytes(producer, redis_client, queue):
    producer.submit(prompt="x", images=[b"123"])
    key = Keys(queue).blob(hashlib.sha256(b"123").hexdigest())
    redis_client.expire(key, 10)
    sent = redis_client.info("commandstats")["cmdstat_set"]["calls"]
    producer.submit(prompt="y", images=[b"123"])
    assert redis_client.info("commandstats")["cmdstat_set"]["calls"] == sent
    assert redis_client.ttl(key) > 80000


def test_bad_jobs_do_not_stop_the_others(producer, redis_client, queue):
    producer.submit(id="taken", prompt="first")
    jobs: list[Any] = [
        {"id": "a", "prompt": "x"},
        {"prompt": ""},
        {"id": "taken", "prompt": "second"},
        "no job",
        Job(id="b", prompt="y"),
    ]
    with pytest.raises(SubmitErrors) as caught:
        producer.submit_many((job for job in jobs), window=2)
    assert caught.value.ids == ["a", None, None, None, "b"]
    kinds = {i: type(error) for i, error in caught.value.errors.items()}
    assert kinds == {1: EmptyPrompt, 2: Conflict, 3: InvalidJob}
    assert "the first is number 2" in caught.value.message
    assert redis_client.xlen(Keys(queue).jobs()) == 3


def test_submit_many_holds_one_window_of_a_generator(producer, redis_client, queue):
    depths = []

    def jobs():
        for i in range(10):
            depths.append(redis_client.xlen(Keys(queue).jobs()))
            yield {"prompt": f"job {i}"}

    ids = producer.submit_many(jobs(), window=4)
    assert len(set(ids)) == 10
    assert depths == [0] * 4 + [4] * 4 + [8] * 2


def test_submit_many_takes_one_round_trip_a_window(server, queue):
    with redis.Redis.from_url(server.url) as client:
        sent = []
        pipeline = client.pipeline
        client.pipeline = lambda **options: sent.append(1) or pipeline(**options)
        Producer(queue=queue, client=client).submit_many([{"prompt": "warm up the script"}])
        sent.clear()
        Producer(queue=queue, client=client).submit_many([{"prompt": str(i)} for i in range(100)])
        assert len(sent) == 1


def test_scripts_are_loaded_again_where_a_server_forgot_them(producer, redis_client):
    producer.submit(prompt="x")
    redis_client.script_flush()
    assert len(producer.submit_many([{"prompt": str(i)} for i in range(5)])) == 5


def test_a_server_at_its_memory_limit_takes_nothing():
    with EmbeddedServer() as own, Producer(own.url, "full") as producer:
        producer.submit(prompt="x")
        client = redis.Redis.from_url(own.url)
        client.config_set("maxmemory", 1)
        for images in ([], [b"123"]):
            with pytest.raises(RedisFull, match="maxmemory"):
                producer.submit(id=f"n{len(images)}", prompt="y", images=images)
        with pytest.raises(SubmitErrors) as caught:
            producer.submit_many([{"prompt": "1"}, {"prompt": ""}])
        assert [type(error) for error in caught.value.errors.values()] == [RedisFull, EmptyPrompt]
        client.config_set("maxmemory", 0)
        assert producer.submit(id="n1", prompt="y", images=[b"123"]) == "n1"
        client.close()


def test_a_server_that_is_not_there_is_named_without_its_password():
    with Producer("redis://user:geheim@127.0.0.1:1/0") as producer:
        with pytest.raises(QueueUnavailable) as caught:
            producer.submit(prompt="x")
        assert "127.0.0.1:1" in caught.value.message
        assert "geheim" not in caught.value.message
        with pytest.raises(SubmitErrors) as many:
            producer.submit_many(({"prompt": str(i)} for i in range(5)), window=2)
        assert many.value.ids == [None, None]


@pytest.mark.parametrize("url", ["http://geheim@x", "geheim", "redis://:geheim@x:port/0"])
def test_a_bad_url_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError) as caught:
        Producer(url)
    assert "geheim" not in caught.value.message


def test_the_url_comes_from_the_environment(server, queue, monkeypatch):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    with Producer(queue=queue) as producer:
        assert producer.submit(id="a", prompt="x") == "a"


def test_settings_that_make_no_sense_are_refused(server):
    with pytest.raises(ConfigError):
        Producer(server.url, max_depth=-1)
    with pytest.raises(ConfigError):
        Producer(server.url, result_ttl=0)
    with (
        redis.Redis.from_url(server.url, decode_responses=True) as client,
        pytest.raises(ConfigError, match="decode_responses"),
    ):
        Producer(client=client)
    with pytest.raises(InvalidJob):
        Producer(server.url, "no queue name")


def test_a_job_or_its_fields_but_not_both(producer):
    with pytest.raises(TypeError):
        producer.submit(Job(prompt="x"), max_tokens=3)
    with pytest.raises(TypeError):
        producer.submit_many(Job(prompt="x"))


async def _async_story(url: str, queue: str, path: Path) -> list[str]:
    async with AsyncProducer(url, queue) as producer:
        first = await producer.submit(id="a", prompt="x", images=[path])
        assert await producer.submit(id="a", prompt="x", images=[path]) == first
        with pytest.raises(Conflict):
            await producer.submit(id="a", prompt="y")
        many = await producer.submit_many({"prompt": str(i)} for i in range(3))
        with pytest.raises(MlxqError):
            await producer.submit(prompt="")
        return [first, *many]


def test_the_async_client_does_the_same(server, queue, redis_client, tmp_path):
    import asyncio

    (tmp_path / "a.png").write_bytes(b"789")
    ids = asyncio.run(_async_story(server.url, queue, tmp_path / "a.png"))
    assert redis_client.xlen(Keys(queue).jobs()) == len(ids) == 4
    assert stored(redis_client, queue, "a").images[0].url == blob_of(b"789")


def test_media_are_kept_no_shorter_than_another_producer_wants(server, queue, redis_client):
    with (
        Producer(server.url, queue) as long,
        Producer(server.url, queue, media_ttl=50) as short,
    ):
        long.submit(prompt="x", images=[b"shared"])
        short.submit(prompt="x", images=[b"shared"])
        short.submit(prompt="x", images=[b"own"])
    times = sorted(redis_client.ttl(key) for key in redis_client.keys(f"{Keys(queue).blob('*')}"))
    assert 0 < times[0] <= 50
    assert times[1] > 80_000


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages[0].name"),
        ({"images": [{"url": "https://x", "max_pixels": 9}]}, "images[0].max_pixels"),
        ({"callback": "https://x"}, "callback"),
        ({"sampling": {"mood": 1}}, "sampling.mood"),
        ({"mood": 1}, "mood"),
    ],
)
def test_what_is_not_honoured_is_named_at_submit(producer, redis_client, queue, fields, path):
    with pytest.raises(Unsupported) as caught:
        producer.submit({**({} if "messages" in fields else {"prompt": "a"}), **fields})
    assert path in caught.value.message
    assert redis_client.xlen(Keys(queue).jobs()) == 0


def test_what_cannot_travel_is_named_at_submit_and_stops_no_other_job(producer):
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    jobs: list[Any] = [
        {"prompt": "half \ud83d"},
        {"prompt": "a", "metadata": {"score": float("nan")}},
        {"prompt": "a", "metadata": {"n": 2**70}},
        {"prompt": "a", "metadata": {"x": {1, object()}}},
        {"prompt": "a", "metadata": deep},
        {"prompt": "a", "sampling": {"max_tokens": 5}, "max_tokens": 6},
        {"id": "half \ud83d", "prompt": "a"},
        {"id": "good", "prompt": "a", "sampling": {"max_tokens": 5}, "max_tokens": 5},
    ]
    with pytest.raises(SubmitErrors) as caught:
        producer.submit_many(jobs)
    assert caught.value.ids == [None] * 7 + ["good"]
    assert {error.code for error in caught.value.errors.values()} == {"invalid_job"}
    named = [caught.value.errors[i].message for i in range(7)]
    words = ["prompt", "metadata.score", "metadata.n", "express", "metadata", "max_tokens", "id"]
    assert [word for word, text in zip(words, named, strict=True) if word not in text] == []


@pytest.mark.parametrize("inline", [True, False])
def test_a_file_whose_name_is_no_utf8_is_sent_by_its_bytes(
    server, redis_client, queue, tmp_path, inline
):
    path = tmp_path / os.fsdecode(b"raw-\xff.png")
    path.write_bytes(b"123")
    with Producer(server.url, queue, inline_media=inline) as producer:
        there = producer.submit(prompt="x", images=[path])
        gone = producer.submit(prompt="x", images=[tmp_path / os.fsdecode(b"gone-\xff.png")])
    [ref] = stored(redis_client, queue, there).images
    assert (ref.url, ref.name) == (blob_of(b"123"), r"raw-\xff.png")
    [ref] = stored(redis_client, queue, gone).images
    assert ref.error is not None
    assert (ref.error.code, ref.url) == ("media_not_found", str(tmp_path / r"gone-\xff.png"))

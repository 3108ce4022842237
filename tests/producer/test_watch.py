"""A watched folder, with a real worker that echoes prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from mlxq_producer import Producer
from mlxq_producer.pipeline.item import Row
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.sources import Sources
from mlxq_producer.pipeline.template import Literal
from mlxq_producer.pipeline.watching import Watch
from mlxq_schemas import Keys
from worker_process import HARMFUL, WorkerProcess, eventually

NOBODY = [".part.png", "~x.png", "tmp_y.png", "notes.txt", "a.png.part", "a.png.crdownload"]


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(path, "PNG")
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "pictures"
    place.mkdir()
    return place


@pytest.fixture
def worker(server, queue, tmp_path):
    child = WorkerProcess(
        tmp_path / "worker.log", "--redis-url", server.url, "--queue", queue, "--model", "noop:"
    )
    child.wait_ready()
    yield child
    child.close()


@pytest.fixture
def environment(server, queue) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


def watching(folder: Path, producer: Producer, rows: list[Row]) -> Watch:
    plan = Plan(Sources([str(folder)]), Literal("say this"), sidecars=("txt",))
    return Watch(folder, plan, producer, rows.append)


def jobs(redis_client, queue: str) -> int:
    return redis_client.xlen(Keys(queue).results)


def test_a_file_is_captioned_when_two_looks_find_it_the_same(
    folder, worker, producer: Producer, redis_client, queue
):
    rows: list[Row] = []
    watch = watching(folder, producer, rows)
    whole, growing = picture(folder / "a.png"), picture(folder / "deep" / "b c ü.png", 1)
    empty = folder / "empty.png"
    empty.touch()
    for name in NOBODY:
        (folder / name).write_bytes(b"half")
    assert watch.look() == 2
    with growing.open("ab") as file:
        file.write(b"more")
    assert watch.look() == 1
    assert [row.source for row in rows] == [str(whole)]
    assert (folder / "a.txt").read_text() == "say this\n"
    assert watch.look() == 0
    assert growing.with_suffix(".txt").read_text() == "say this\n"
    picture(empty, 2)
    assert [watch.look(), watch.look(), watch.look()] == [1, 0, 0]
    assert sorted(path.name for path in folder.rglob("*.txt")) == [
        "a.txt",
        "b c ü.txt",
        "empty.txt",
        "notes.txt",
    ]
    assert jobs(redis_client, queue) == 3


def test_a_new_watch_does_nothing_twice(folder, worker, producer, redis_client, queue):
    picture(folder / "a.png")
    (folder / "broken.png").write_bytes(b"no picture")
    rows: list[Row] = []
    for _ in range(2):
        watch = watching(folder, producer, rows)
        assert [watch.look(), watch.look()] == [2, 0]
    assert jobs(redis_client, queue) == len(rows)
    done = jobs(redis_client, queue)
    picture(folder / "a.png", 9)  # changed: its caption is too
    os.utime(folder / "a.png", (1, 1))
    watch.look()
    watch.look()
    assert jobs(redis_client, queue) == done + 1


def command(folder: Path, *options: str) -> list[str]:
    words = ["watch", str(folder), "-p", "say this", "--interval", "0.1s", *options]
    return [sys.executable, "-m", "mlxq_producer", *words]


def test_what_is_passed_over_is_told_once(folder, producer: Producer):
    told: list[dict[str, int]] = []
    watch = watching(folder, producer, [])
    watch.passed = lambda over: told.append(dict(over))
    for name in ("a.heic", "b.svg", "c.png.part", ".d.heic", "Thumbs.db", "a.heic.part"):
        (folder / name).write_bytes(b"x")
    (folder / "tmp_e.png").write_bytes(b"half")
    (folder / "f.png").touch()
    assert (watch.look(), told, watch.waiting) == (0, [{".heic": 1, ".svg": 1}], 2)
    (folder / "tmp_e.png").write_bytes(b"more than half")
    assert watch.look() == 0
    assert told[1:] == [{"empty": 1}]
    (folder / "g.heic").write_bytes(b"x")
    assert (watch.look(), watch.waiting) == (0, 0)
    assert told[2:] == [{".heic": 1, "with a temporary name": 1}]
    assert (watch.look(), len(told)) == (0, 3)


def test_a_watch_that_looks_once_names_what_it_passes_over(folder, environment):
    (folder / "a.heic").write_bytes(b"x")
    (folder / "f.png").touch()
    done = [
        subprocess.run(
            command(folder, "--once", *more),
            env=environment,
            timeout=100,
            check=False,
            capture_output=True,
            text=True,
        )
        for more in ((), ("--json",))
    ]
    assert [run.returncode for run in done] == [0, 0], done
    assert "1 .heic" in done[0].stderr
    assert "1 empty" in done[0].stderr
    events = [json.loads(line) for line in done[1].stdout.splitlines()]
    assert events == [
        {"type": "passed_over", "kinds": {".heic": 1}},
        {"type": "passed_over", "kinds": {"empty": 1}},
    ]


def test_a_killed_watch_goes_on(folder, worker, environment, redis_client, queue):
    for number in range(30):
        picture(folder / f"{number}.png", number)
    child = subprocess.Popen(command(folder), env=environment, stdout=subprocess.DEVNULL)
    eventually(lambda: len(list(folder.glob("*.txt"))) >= 3)
    child.kill()
    child.wait()
    done = subprocess.run(
        command(folder, "--once"), env=environment, timeout=100, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*.txt"))) == 30
    assert {path.read_text() for path in folder.glob("*.txt")} == {"say this\n"}
    assert not list(folder.glob(".mlxq-*.tmp"))
    assert jobs(redis_client, queue) == 30


def test_what_appears_is_captioned(folder, worker, environment):
    child = subprocess.Popen(command(folder), env=environment, stdout=subprocess.PIPE, text=True)
    late = picture(folder / "late.png")
    assert child.stdout is not None
    assert child.stdout.readline().strip() == str(late)
    child.terminate()
    child.communicate()


def test_failures_are_told_and_not_tried_again(
    folder, server, queue, environment, redis_client, tmp_path
):
    picture(folder / "a.png")
    where = ("--redis-url", server.url, "--queue", queue)
    log = tmp_path / "worker.log"
    worker = WorkerProcess(log, *where, "--model", "noop:", "--max-attempts", "1", program=HARMFUL)
    worker.wait_ready()
    call = command(folder, "--once", "-p", "hopeless")
    done = [
        subprocess.run(call, env=environment, timeout=100, check=False, capture_output=True)
        for _ in range(2)
    ]
    worker.close()
    assert [run.returncode for run in done] == [3, 3], done
    assert b"error[media_fetch_failed]: " in done[0].stderr
    assert b"a.png" in done[0].stderr
    assert jobs(redis_client, queue) == 1
    assert not list(folder.glob("*.txt"))


def test_a_folder_that_is_none_and_a_server_that_is_away(folder, environment):
    missing = command(folder / "nowhere", "--once")
    done = subprocess.run(missing, env=environment, timeout=100, check=False, capture_output=True)
    assert done.returncode == 2
    assert b"no folder" in done.stderr
    picture(folder / "a.png")
    away = {**environment, "MLXQ_REDIS_URL": "redis://127.0.0.1:1/0"}
    once = subprocess.run(
        command(folder, "--once"), env=away, timeout=100, check=False, capture_output=True
    )
    assert once.returncode == 4, once.stderr
    child = subprocess.Popen(command(folder), env=away, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert "trying again" in child.stderr.readline()
    assert child.poll() is None
    child.kill()
    child.communicate()

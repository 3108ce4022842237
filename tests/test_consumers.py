"""The programs in examples/, which docs/consumers.md shows, do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Job, Keys, Started, Token
from worker_process import PATIENCE, eventually

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "consumers.md").read_text()
SHOWN = dict(
    re.findall(r"^`examples/(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)
TEXT = "a 'red'\n\nücircle "
PIECES = ["a 'red'", "\n", "\nü", "circle "]


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


@pytest.fixture
def environment(server: EmbeddedServer, queue: str) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


@contextmanager
def running(environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output is read; it is killed at the end if need be."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_page_shows_the_programs_as_they_are() -> None:
    programs = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*")
        if path.suffix in {".py", ".sh", ".mjs", ".html"} and "node_modules" not in path.parts
    }
    assert SHOWN.keys() <= programs
    assert len(SHOWN) == 7
    for name, text in SHOWN.items():
        assert text == (EXAMPLES / name).read_text(), name


def follow_live(worker: LuaWorker, environment: dict[str, str], *command: str) -> None:
    """The program prints what was there when it came, then what comes, and ends with the job."""
    worker.submit(Job(id="a", prompt="x"))
    [(entry, _)] = worker.read()
    epoch = worker.claim("a", entry)[1]
    worker.append("a", epoch, Started(job="a"), Token(job="a", text=PIECES[0]))
    with running(environment, *command, "a") as process:
        assert process.stdout is not None
        assert process.stdout.read(len(PIECES[0])) == PIECES[0].encode()
        worker.append("a", epoch, *(Token(job="a", text=piece) for piece in PIECES[1:]))
        worker.finish("a", epoch, entry, TEXT)
        assert process.stdout.read().decode() == TEXT.removeprefix(PIECES[0]) + "\n"
        assert process.wait(PATIENCE) == 0


def end_badly(worker: LuaWorker, environment: dict[str, str], *command: str) -> None:
    """A job that failed before the program came: it says so, in its exit status."""
    worker.submit(Job(id="b", prompt="x"))
    [(entry, _)] = worker.read()
    worker.finish("b", worker.claim("b", entry)[1], entry, code="timeout")
    done = subprocess.run([*command, "b"], env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 1


def test_redis_py(worker: LuaWorker, environment: dict[str, str]) -> None:
    command = (sys.executable, str(EXAMPLES / "follow_redis_py.py"))
    follow_live(worker, environment, *command)
    end_badly(worker, environment, *command)
    done = subprocess.run([*command, "none"], env=environment, stderr=subprocess.PIPE, check=False)
    assert b"has no job none" in done.stderr


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not installed")
def test_redis_cli(worker: LuaWorker, environment: dict[str, str]) -> None:
    command = ("sh", str(EXAMPLES / "follow.sh"))
    follow_live(worker, environment, *command)
    end_badly(worker, environment, *command)


def test_the_one_line_that_reads_a_result(worker: LuaWorker, redis_client: redis.Redis) -> None:
    worker.submit(Job(id="ID", prompt="x"))
    worker.do(PIECES)
    [script] = re.findall(r'--raw EVAL "(.*?)" 1', PAGE)
    assert redis_client.eval(script, 1, worker.keys.result("ID")) == TEXT.encode()


def test_asyncio(worker: LuaWorker, environment: dict[str, str]) -> None:
    for name in "abc":
        worker.submit(Job(id=name, prompt="x"))
    worker.do(["early"])
    with running(
        environment, sys.executable, str(EXAMPLES / "follow_asyncio.py"), *"abc"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a finished early\n"
        worker.do(["late ", "text"])
        assert process.stdout.readline() == b"b finished late text\n"
        [(entry, _)] = worker.read()
        worker.finish("c", worker.claim("c", entry)[1], entry, code="timeout")
        assert process.stdout.readline() == b"c failed why\n"
        assert process.wait(PATIENCE) == 0


def test_results_are_shared_and_left_rows_come_again(
    worker: LuaWorker, environment: dict[str, str], redis_client: redis.Redis, queue: str
) -> None:
    program = (sys.executable, str(EXAMPLES / "read_results.py"), "group", "reader")
    for name in ("a", "b"):
        worker.submit(Job(id=name, prompt="x"))
        worker.do([f"text {name}"])
    results = Keys(queue).results
    # A reader of this name took both rows and died.
    redis_client.xgroup_create(results, "group", id="0")
    redis_client.xreadgroup("group", "reader", {results: ">"})
    redis_client.delete(Keys(queue).result("b"))
    with running(environment, *program) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        worker.submit(Job(id="c", prompt="x"))
        worker.do(["ü"])
        lines.append(json.loads(process.stdout.readline()))
        eventually(lambda: redis_client.xpending(results, "group")["pending"] == 0)
    assert lines == [
        {"id": "a", "type": "finished", "text": "text a"},
        {"id": "b", "type": "gone", "text": None},
        {"id": "c", "type": "finished", "text": "ü"},
    ]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("npm"), reason="node and npm are not installed")
def test_node(worker: LuaWorker, environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("package.json", "follow.mjs"):
        shutil.copy(EXAMPLES / "node" / name, tmp_path)
    install = ["npm", "install", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"npm install: {done.stderr.decode()[-300:]}")
    command = ("node", str(tmp_path / "follow.mjs"))
    follow_live(worker, environment, *command)
    end_badly(worker, environment, *command)


@pytest.fixture
def site(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the web example, served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES / "sse"), "--port", str(port), "app:app"]
    with running(environment, sys.executable, *command):
        eventually(lambda: _answers(port), "the web server")
        yield f"http://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def open_url(url: str, data: Any = None, **headers: str) -> Any:
    body = None if data is None else json.dumps(data).encode()
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE)


def sse_events(answer: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, type and data of each event, as a browser takes them apart."""
    fields: dict[str, str] = {}
    for raw in answer:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        else:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


def test_server_sent_events(site: str, worker: LuaWorker) -> None:
    with open_url(site) as page:
        assert b"EventSource" in page.read()
    with open_url(f"{site}/jobs", {"prompt": "x", "image": "/etc/passwd"}) as answer:
        job_id = json.load(answer)["id"]
    [(entry, _)] = worker.read()
    epoch, _, _, _, spec = worker.claim(job_id, entry)[1:6]
    assert b"passwd" not in spec
    worker.append(job_id, epoch, Started(job=job_id), Token(job=job_id, text="a\nü"))
    with open_url(f"{site}/jobs/{job_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = sse_events(answer)
        seen = [next(events)[:2] for _ in range(3)]
        worker.append(job_id, epoch, Token(job=job_id, text=" b"))
        worker.finish(job_id, epoch, entry, "a\nü b")
        rest = list(events)
    assert seen == [(0, "queued"), (1, "started"), (2, "token")]
    assert [one[:2] for one in rest] == [(3, "token"), (4, "finished")]
    assert rest[-1][2]["text"] == "a\nü b"
    again = {"Last-Event-ID": "2"}
    with open_url(f"{site}/jobs/{job_id}/events", **again) as answer:
        assert list(sse_events(answer)) == rest


def test_the_page_says_what_was_wrong(site: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        open_url(f"{site}/jobs", {"prompt": " "})
    with caught.value as answer:
        assert json.load(answer)["code"] == "empty_prompt"
    with open_url(f"{site}/jobs/none/events") as answer:
        assert answer.read() == b"event: refused\ndata: unknown_job\n\n"


@pytest.mark.slow
def test_the_page_in_a_browser(site: str, worker: LuaWorker) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("chromium is not installed")
    worker.submit(Job(id="a", prompt="x"))
    thread = threading.Thread(target=worker.do, args=(["a red ", "circle"],))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    with subprocess.Popen(
        [browser, *options, "--dump-dom", f"{site}/?job=a"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        thread.start()
        page, _ = process.communicate(timeout=PATIENCE)
    thread.join()
    assert b'<pre id="text">a red circle</pre>' in page
    assert b'<p id="state">finished</p>' in page

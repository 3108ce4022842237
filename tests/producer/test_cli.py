"""The command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mlxq_schemas import Failed, Keys, Sampling, Token, TokenLogprob
from mlxq_schemas.wire import decode_job, encode_event

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def environment(server, queue, monkeypatch) -> dict[str, str]:
    """Environment of a real process on the test's queue."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


def command(*args: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "mlxq_producer", *args]


def stored(redis_client: Any, queue: str, job_id: str) -> Any:
    return decode_job(redis_client.hget(Keys(queue).job(job_id), "spec"), job_id)


def test_submit_prints_the_id(mlxq, redis_client, queue):
    result = mlxq("submit", "-p", "hi", "--max-tokens", "5", "--stop", "x", "--stop", "y")
    assert result.exit_code == 0
    job = stored(redis_client, queue, result.stdout.strip())
    assert (job.prompt, job.sampling) == ("hi", Sampling(max_tokens=5, stop=["x", "y"]))
    result = mlxq("submit", "-p", "hi", "--id", "a", "--json", "--priority", "high")
    assert json.loads(result.stdout) == {"id": "a"}
    assert stored(redis_client, queue, "a").priority == "high"


def test_a_prompt_may_come_from_stdin_with_images_and_a_system_message(
    mlxq, redis_client, queue, tmp_path
):
    (tmp_path / "a.png").write_bytes(b"1")
    path = str(tmp_path / "a.png")
    result = mlxq("submit", "-p", "-", "-i", path, "-i", "http://x/y", "--system", "s", stdin="hi")
    job = stored(redis_client, queue, result.stdout.strip())
    system, user = job.messages
    assert (system.role, system.content) == ("system", "s")
    assert [part.type for part in user.content] == ["image_url", "image_url", "text"]
    assert user.content[-1].text == "hi"


def test_jobs_as_json(mlxq, redis_client, queue, tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"id": "a", "prompt": "x"}, indent=2))
    assert mlxq("submit", "--job", str(tmp_path / "one.json")).stdout == "a\n"
    lines = '{"id": "b", "prompt": "x", "max_tokens": 3}\n\n{"id": "c", "prompt": "y"}\n'
    result = mlxq("submit", "--job", "-", "--json", stdin=lines)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"id": "b"}, {"id": "c"}]
    assert stored(redis_client, queue, "b").sampling.max_tokens == 3


def test_jobs_that_are_refused_do_not_stop_the_others(mlxq):
    lines = '{"id": "a", "prompt": "x"}\n{"prompt": ""}\n{"id": "b", "prompt": "y"}\n'
    result = mlxq("submit", "--job", "-", stdin=lines)
    assert (result.exit_code, result.stdout) == (2, "a\nb\n")
    assert result.stderr.startswith("error[empty_prompt]: job number 2: ")
    *ids, last = mlxq("submit", "--job", "-", "--json", stdin=lines).stdout.splitlines()
    assert [json.loads(line)["id"] for line in ids] == ["a", "b"]
    [job] = json.loads(last)["error"]["jobs"]
    assert (job["number"], job["code"]) == (2, "empty_prompt")


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["submit"], None, "--prompt"),
        (["submit", "-p", " "], None, "error[empty_prompt]"),
        (
            ["submit", "-p", "x", "-i", "/no/such.png"],
            None,
            "error[media_not_found]: cannot read /no",
        ),
        (
            ["submit", "-p", "x", "--temperature", "-1"],
            None,
            "error[config]: --temperature -1: must be at least 0",
        ),
        (["submit", "-p", "x", "--max-tokens", "many"], None, "--max-tokens"),
        (["submit", "-p", "x", "-q", "a b"], None, "queue 'a b'"),
        (["submit", "-p", "x", "--redis-url", "http://x"], None, "error[config]"),
        (["submit", "--job", "/no/such.json"], None, "/no/such.json"),
        (["submit", "--job", "-"], '{"id": "a", "prompt": "x"}\n{oops\n', "-, line 2: not JSON"),
        (["submit", "--job", "-"], "[1]", "not a JSON object"),
        (["submit", "--job", "-"], "\n", "holds no job"),
        (["submit", "--job", "-", "-p", "x"], "{}", "--job"),
        (["submit", "--job", "-", "-f"], '{"prompt": "x"}\n{"prompt": "y"}', "2 jobs"),
        (["result", "a b"], None, "job id 'a b'"),
        (["bogus"], None, "bogus"),
    ],
)
def test_a_users_mistake_is_one_message_and_exit_code_2(
    mlxq, redis_client, queue, args, stdin, words
):
    result = mlxq(*args, stdin=stdin)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(redis_client.scan_iter(f"{Keys(queue).prefix}:*"))


def test_errors_as_json(mlxq):
    result = mlxq("result", "a", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (1, "unknown_job")
    assert "no job a" in error["message"]
    assert not result.stderr


def test_exit_codes_by_kind(mlxq, producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    assert mlxq("submit", "-p", "y", "--id", "a").exit_code == 2
    assert mlxq("result", "b").exit_code == 1
    assert mlxq("result", "a").exit_code == 5
    assert mlxq("follow", "a", "--wait", "0.05").exit_code == 5
    assert mlxq("status", "--redis-url", "redis://127.0.0.1:1").exit_code == 4
    worker.claim()
    worker.fail("a", "media_invalid", "no\ngood")
    for name in ("result", "follow"):
        result = mlxq(name, "a")
        assert result.exit_code == 3
        assert result.stderr == "error[media_invalid]: no good\n"


def test_result_and_follow_print_the_text(mlxq, producer, worker):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.tokens("a", "a ", "ü")
    worker.finish("a", "a ü")
    for name in ("result", "follow"):
        result = mlxq(name, "a")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "a ü\n", "")
    assert json.loads(mlxq("result", "a", "--json").stdout)["text"] == "a ü"
    events = [json.loads(line) for line in mlxq("follow", "a", "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == [0, 1, 2, 3, 4]
    late = mlxq("follow", "a", "--json", "--from-seq", "4").stdout
    assert json.loads(late)["type"] == "finished"


def test_cancel(mlxq, producer, worker):
    producer.submit(id="a", prompt="x")
    assert mlxq("cancel", "a").stdout == "a cancelled\n"
    assert json.loads(mlxq("cancel", "a", "--json").stdout) == {"id": "a", "outcome": "ended"}
    result = mlxq("result", "a")
    assert (result.exit_code, result.stderr) == (3, "error[cancelled]: job a was cancelled\n")


def test_status(mlxq, producer, queue):
    producer.submit(prompt="x")
    lines = mlxq("status").stdout
    assert f"queue: {queue}\n" in lines
    assert "waiting: 1 (normal 1), the oldest for " in lines
    assert "problem: no worker is up: start mlxq worker --queue" in lines
    assert json.loads(mlxq("status", "--json").stdout)["depth"] == {
        "high": 0,
        "normal": 1,
        "low": 0,
    }


def test_help_and_version(mlxq):
    for name in ("", "demo", "submit", "follow", "result", "cancel", "status", "dead"):
        result = mlxq(*filter(None, [name, "--help"]))
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    assert mlxq("--version").stdout.startswith("mlxq")


def test_submit_follows_a_job_live_in_a_real_process(environment, worker, queue, redis_client):
    args = command("submit", "-p", "x", "--id", "a", "--follow")
    with subprocess.Popen(args, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        job = None
        while job is None:
            assert process.poll() is None
            job = worker.claim() if redis_client.exists(Keys(queue).job("a")) else None
        worker.tokens("a", "red ")
        assert process.stdout.read(4) == b"red "
        worker.tokens("a", "circle")
        worker.finish("a", "red circle")
        assert process.stdout.read() == b"circle\n"
    assert process.returncode == 0


def test_an_interrupt_is_quiet(environment, producer):
    producer.submit(id="a", prompt="x")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command("follow", "a", "--json"), env=environment, **pipes) as process:
        assert b"queued" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_closed_pipe_is_quiet(environment, producer, worker):
    producer.submit(id="a", prompt="x")
    worker.claim()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command("follow", "a", "--json"), env=environment, **pipes) as process:
        assert b"queued" in process.stdout.readline()
        assert b"started" in process.stdout.readline()
        process.stdout.close()
        worker.tokens("a", "more")
        worker.finish("a", "more")
        error = process.stderr.read()
    assert (process.returncode, error) == (141, b"")


def test_worker_hands_everything_through(environment):
    environment["PYTHONPATH"] = f"{STAND_IN}{os.pathsep}{environment['PYTHONPATH']}"
    environment["STAND_IN"] = "echo"
    args = ["--help", "-q", "x", "--json", "--version", "--model=a b", "rest"]
    done = subprocess.run(
        command("worker", *args), env=environment, capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == args


def test_without_the_worker_extra_the_remedy_is_named(mlxq, monkeypatch):
    monkeypatch.setattr("mlxq_producer.worker_command.importlib.util.find_spec", lambda name: None)
    result = mlxq("worker", "--model", "x")
    assert result.exit_code == 2
    assert 'pip install "mlxq[worker]"' in result.stderr


def test_the_producer_imports_neither_mlx_nor_the_worker():
    code = (
        "import sys, mlxq_producer, mlxq_producer.cli\n"
        "heavy = {'mlx', 'mlx_vlm', 'transformers', 'mlxq_worker', 'PIL', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_times_of_a_job(mlxq, redis_client, queue):
    times = ["--delay", "15m", "--within", "2h", "--timeout", "1.5m", "--max-attempts", "2"]
    before = time.time()
    result = mlxq("submit", "-p", "hi", *times)
    job = stored(redis_client, queue, result.stdout.strip())
    assert job.not_before - before == pytest.approx(900, abs=60)
    assert job.deadline - before == pytest.approx(7200, abs=60)
    assert (job.timeout, job.max_attempts) == (90, 2)
    times = ["--not-before", "2100-01-01T00:00:00Z", "--deadline", "4102448400"]
    job = stored(redis_client, queue, mlxq("submit", "-p", "hi", *times).stdout.strip())
    assert (job.not_before, job.deadline) == (4102444800, 4102448400)
    assert redis_client.zcard(Keys(queue).delayed) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--delay", "soon"], "must be a duration"),
        (["--not-before", "tomorrow"], "must be a time"),
        (["--not-before", "nan"], "must be a time"),
        (["--not-before", "1", "--delay", "1"], "--not-before or --delay"),
        (["--deadline", "1", "--within", "1"], "--deadline or --within"),
        (["--not-before", "9", "--deadline", "8"], "deadline"),
        (["--timeout", "0"], "--timeout 0: must be more than 0"),
        (["--max-attempts", "0"], "--max-attempts 0: must be at least 1"),
    ],
)
def test_wrong_times_are_refused(mlxq, args, words):
    result = mlxq("submit", "-p", "hi", *args)
    assert result.exit_code == 2
    assert words in result.stderr


def test_jobs_as_json_are_read_whole(mlxq, redis_client, queue, tmp_path):
    """Lines end at line feeds only; a name that stands twice would lose one of its values."""
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"id": "a", "prompt": "one\u2028line"}\n{"id": "b", "prompt": "two"}\n')
    assert mlxq("submit", "--job", str(path)).stdout.split() == ["a", "b"]
    assert stored(redis_client, queue, "a").prompt == "one\u2028line"
    for text in (
        '{"prompt": "a", "prompt": "b"}',
        '{"id": "c", "prompt": "x"}\n{"id": 1, "id": 2}',
    ):
        result = mlxq("submit", "--job", "-", stdin=text)
        assert (result.exit_code, "stands there twice" in result.stderr) == (2, True)
    assert redis_client.exists(Keys(queue).job("c")) == 0


def test_json_is_strict_whatever_is_in_it(mlxq, redis_client, queue):
    keys = Keys(queue)
    token = Token(job="a", seq=0, text="x\u2028", logprobs=[TokenLogprob(id=1, logprob=-math.inf)])
    for seq, event in enumerate((token, Failed(job="a", seq=1, code="internal", message="y"))):
        redis_client.xadd(keys.events("a"), {"e": encode_event(event)}, id=f"{seq + 1}-0")
    redis_client.hset(keys.job("a"), mapping={"state": "failed", "seq": 2})
    for key in (keys.job("a"), keys.events("a")):
        redis_client.expire(key, 60)
    [line, _] = mlxq("follow", "a", "--json", "--wait", "5").stdout.splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["logprobs"][0]["logprob"] is None
    result = mlxq("result", "half \ud83d", "--json")
    assert json.loads(result.stdout)["error"]["code"] == "invalid_job"


def test_words_that_are_no_utf8_are_a_users_mistake(environment):
    args = [os.fsencode(word) for word in command("submit", "--json", "-p")]
    result = subprocess.run(
        [*args, b"half \xff"], env=environment, capture_output=True, check=False
    )
    assert result.returncode == 2
    error = json.loads(result.stdout)["error"]
    assert (error["code"], "prompt holds half" in error["message"]) == ("invalid_job", True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["submitt"], "no command submitt: did you mean submit?"),
        (["batch", "runn"], "no command runn: did you mean run?"),
        (["submit", "--max-token", "5"], "--max-token is unknown: did you mean --max-tokens?"),
        (["--bogus"], '--bogus is unknown; "mlxq --help" shows'),
        (["batch", "run"], "IN.jsonl is missing"),
        (["submit", "-p"], "-p needs a value"),
        (["submit", "-p", "x", "--follow=3"], "--follow takes no value"),
        (["status", "extra"], "unexpected: extra"),
        (["submit", "-p", "x", "--max-tokens", "abc"],
         "--max-tokens abc: must be a whole number"),
        (["submit", "-p", "x", "--priority", "soon"],
         "--priority soon: must be high, normal or low"),
        (["submit", "-p", "x", "--timeout", "0"], "--timeout 0: must be more than 0"),
        (["submit", "-p", "x", "--id", "a/b"], "--id: job id 'a/b' is not a name"),
        (["caption", "x", "-p", "y", "--top-p", "3"], "--top-p 3: must be at most 1"),
        (["caption", "x", "--window", "0"], "--window 0: must be at least 1"),
        (["caption", "x", "-p", "y", "--column", "imge=a"], "did you mean image?"),
        (["result", "a", "--wait", "soon"], "--wait soon: must be a duration"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line_in_the_words_of_all_errors(mlxq, args, said):
    result = mlxq(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error[config]: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_command_line_as_json(mlxq):
    error = json.loads(mlxq("submit", "--json", "--max-tokens", "abc").stdout)["error"]
    assert error == {"code": "config", "message": "--max-tokens abc: must be a whole number"}


def test_a_running_job_names_the_way_to_wait(mlxq, producer):
    producer.submit(id="a", prompt="x")
    result = mlxq("result", "a")
    assert result.exit_code == 5
    assert "--wait" in result.stderr


def test_a_misspelt_variable_is_told_once(mlxq, monkeypatch):
    monkeypatch.setenv("MLXQ_QUEU", "x")
    assert mlxq("status").stderr == "warning: MLXQ_QUEU is unknown: did you mean MLXQ_QUEUE?\n"

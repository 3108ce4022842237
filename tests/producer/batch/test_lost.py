"""A part is not taken for the whole: rows, lines, results and inputs that went missing."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batch_files import Answering, request, rows
from mlxq_producer.batch import DetachedBatches, running
from mlxq_producer.batch.outputs import encode_row
from mlxq_producer.batch.rows import Sent, response_row
from mlxq_producer.cli import app
from mlxq_schemas import Keys, Result, TokenLogprob
from mlxq_schemas.errors import ConfigError

LINES = [request(str(i), f"größe {i}") for i in range(5)] + [request("f", "fail"), "{oops"]


def counts(batch) -> tuple[int, int, int]:
    found = batch.request_counts
    return found.total, found.completed, found.failed


def forget(redis_client: Any, queue: str) -> None:
    """The jobs of a batch are long gone from the server."""
    keys = Keys(queue)
    for name in [*redis_client.scan_iter(keys.job("*")), *redis_client.scan_iter(keys.result("*"))]:
        redis_client.delete(name)


def torn(data: bytes) -> dict[str, bytes]:
    rest = data[: data.rindex(b"\n", 0, -1) + 1]
    return {
        "in a row": data[:-40],
        "in a character": data[: data.rindex("ß".encode()) + 1],
        "no newline": data[:-1],
        "zeros": data[:-60] + bytes(60),
        "zeros and a newline": data[:-60] + bytes(59) + b"\n",
        "a row without its end": data[:-60] + b"\n",
        "only zeros": rest + bytes(100),
        "all gone": b"",
    }


HOW = list(torn(b'{"x": "\xc3\x9f"}\n' * 90))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_an_ended_batch_that_lost_rows_does_them_again(
    answering, write_lines, batch_run, tmp_path, redis_client, queue, how, kept
):
    write_lines(LINES)
    first = batch_run().run()
    out = tmp_path / "out.jsonl"
    whole = out.read_bytes()
    out.write_bytes(torn(whole)[how])
    if not kept:
        forget(redis_client, queue)
    batch = batch_run().run()
    assert (batch.id, batch.status, counts(batch)) == (first.id, "completed", (7, 5, 2))
    assert [row["custom_id"] for row in sorted(rows(out), key=lambda row: row["id"])] == list(
        "01234"
    )
    assert sorted(row["custom_id"] or "" for row in rows(tmp_path / "err.jsonl")) == ["", "f"]
    asked = len(answering.texts)
    assert (asked == 6) == kept
    assert batch_run().run() == batch  # and then nothing is left to do
    assert len(answering.texts) == asked


def test_error_rows_that_were_lost_are_written_again(answering, write_lines, batch_run, tmp_path):
    write_lines(LINES)
    batch_run().run()
    err = tmp_path / "err.jsonl"
    whole = err.read_bytes()
    err.write_bytes(whole[:-5])
    assert counts(batch_run().run()) == (7, 5, 2)
    assert sorted(err.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_row_that_is_there_twice_stands_for_one_line(
    answering, write_lines, batch_run, tmp_path, redis_client, queue
):
    write_lines(LINES)
    batch_run().run()
    out = tmp_path / "out.jsonl"
    [first, *rest] = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(first + first + b"".join(rest[1:]))
    assert counts(batch_run().run()) == (7, 5, 2)
    assert {row["custom_id"] for row in rows(out)} == set("01234")


def test_a_batch_whose_window_is_over_gets_another_for_rows_that_were_lost(
    answering, write_lines, batch_run, tmp_path, redis_client, queue
):
    write_lines([request("a"), request("b")])
    batch_run(completion_window=3600).run()
    forget(redis_client, queue)
    state, out = tmp_path / "out.jsonl.batch", tmp_path / "out.jsonl"
    fields = json.loads(state.read_text())
    for name in ("created_at", "expires_at"):
        fields[name] -= 7200
    state.write_text(json.dumps(fields))
    out.write_bytes(out.read_bytes()[:-9])
    batch = batch_run(completion_window=3600).run()
    assert (batch.status, counts(batch)) == ("completed", (2, 2, 0))


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_rows_lost_of_a_batch_that_was_given_up_are_reported(
    answering, write_lines, batch_run, tmp_path, redis_client, queue, status
):
    write_lines([request("a"), request("b"), request("c")])
    batch_run().run()
    state, out = tmp_path / "out.jsonl.batch", tmp_path / "out.jsonl"
    state.write_text(state.read_text().replace('"completed",', f'"{status}",'))
    [first, *_] = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(first)
    keys = Keys(queue)
    [gone, *_] = [
        row["response"]["request_id"] for row in rows(out)
    ]  # the first row's job may stay or go: its row is there
    redis_client.delete(keys.job(gone), keys.result(gone))
    assert counts(batch_run().run()) == (3, 3, 0)  # the results are there still
    out.write_bytes(first)
    forget(redis_client, queue)
    batch = batch_run().run()
    assert (batch.status, counts(batch)) == (status, (3, 1, 2))
    assert {r["error"]["code"] for r in rows(tmp_path / "err.jsonl")} == {f"batch_{status}"}


@pytest.mark.parametrize("text", [b"precious", b"precious\n", b'{"id": "batch_req_0_1", "custom'])
def test_files_of_others_are_not_taken_for_torn_ones(write_lines, batch_run, tmp_path, text):
    write_lines([request("a")])
    out = tmp_path / "out.jsonl"
    out.write_bytes(text)
    with pytest.raises(ConfigError, match=r"out\.jsonl holds what is not of this batch"):
        batch_run().run()
    assert out.read_bytes() == text


def test_a_file_that_is_broken_in_its_middle_is_refused(
    answering, write_lines, batch_run, tmp_path
):
    write_lines(LINES)
    batch_run().run()
    out = tmp_path / "out.jsonl"
    [first, second, *rest] = out.read_bytes().splitlines(keepends=True)
    broken = first + second[:-30] + bytes(29) + b"\n" + b"".join(rest)
    out.write_bytes(broken)
    with pytest.raises(ConfigError, match=f"broken after byte {len(first)}"):
        batch_run().run()
    assert out.read_bytes() == broken


def test_an_input_that_shrank_while_it_was_read_is_no_whole_batch(
    answering, write_lines, batch_run, tmp_path
):
    source = write_lines([request(str(i)) for i in range(20)])
    whole = source.read_bytes()

    def cut(_: object) -> None:
        if source.stat().st_size == len(whole):
            os.truncate(source, whole.index(b"\n") + 1)

    with pytest.raises(ConfigError, match=r"in\.jsonl changed"):
        batch_run(window=2).run(cut)
    source.write_bytes(whole)
    assert counts(batch_run(window=2).run()) == (20, 20, 0)


def test_a_results_stream_that_is_trimmed_before_it_is_read_loses_nothing(
    worker, write_lines, batch_run, redis_client, queue, monkeypatch
):
    """Rows of other jobs come all the time, and ours are not among them."""
    monkeypatch.setattr(
        running, "ended_since", lambda keys, cursor: iter_of((cursor, ["somebody else's"]))
    )
    write_lines([request(str(i)) for i in range(3)])
    with Answering(worker):
        assert counts(batch_run().run()) == (3, 3, 0)


def iter_of(value: Any) -> Any:
    yield from ()
    return value


def test_the_command_says_what_is_lost(
    answering, write_lines, tmp_path, server, queue, redis_client, monkeypatch
):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    source = write_lines([request(str(i)) for i in range(4)])
    batches = DetachedBatches(redis_client, queue)
    sent = batches.submit(source, 3600)
    lines = Keys(queue).batch_lines(sent.id)
    redis_client.xdel(lines, "2-0", "3-0")
    arguments = ["batch", "fetch", sent.id, "--wait", "30", "-o", str(tmp_path / "o.jsonl")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 3
    assert "2 of 4 done, 2 lost" in done.stdout
    assert {row["custom_id"] for row in rows(tmp_path / "o.jsonl")} == {"0", "3"}
    redis_client.delete(lines)
    status = CliRunner().invoke(app, ["batch", "status", sent.id])
    assert "2 lost" in status.stdout
    gone = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "p.jsonl")])
    assert (gone.exit_code, "0 of 4 done, 4 lost" in gone.stdout) == (3, True)


def test_rows_are_strict_json(answering, write_lines, batch_run, tmp_path):
    """A custom_id that is half a text is spelled out; its line is answered like any other."""
    write_lines(
        [
            '{"custom_id": "half \\ud83d", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": "x"}}',
            '{"custom_id": "prompt", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": "\\ud83d"}}',
            '{"custom_id": "nan", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": "x", "metadata": {"score": NaN}}}',
            '{"custom_id": "twice", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": "x", "prompt": "y"}}',
            request("\u2028", "a\u2028b\x85c"),
        ]
    )
    batch = batch_run().run()
    assert counts(batch) == (5, 2, 3)
    out = {row["custom_id"]: row for row in rows(tmp_path / "out.jsonl")}
    assert out.keys() == {r"half \ud83d", "\u2028"}
    message = out["\u2028"]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == "a\u2028b\x85c"
    errors = {row["custom_id"]: row["error"] for row in rows(tmp_path / "err.jsonl")}
    assert {name: one["code"] for name, one in errors.items()} == {
        "prompt": "invalid_job",
        "nan": "invalid_job",
        None: "invalid_json_line",
    }
    assert counts(batch_run().run()) == (5, 2, 3)


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
def test_a_token_that_is_ruled_out_has_openais_number(url):
    result = Result(job="a", type="finished", reason="stop", text="x")
    one = TokenLogprob(id=7, logprob=-math.inf, top={9: -math.inf})
    row = encode_row(response_row("batch_1", Sent(1, "a", url, True), result, [one]))
    assert row.count(b"-9999.0") == 2
    json.loads(row, parse_constant=pytest.fail)


def test_a_folder_whose_name_is_no_text(answering, batch_run, tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    (folder / "in.jsonl").write_text(json.dumps(request("a")) + "\n")
    run = batch_run()
    files = {name: folder / f"{name}.jsonl" for name in ("source", "output", "errors")}
    files["source"] = folder / "in.jsonl"
    for _ in range(2):
        batch = type(run)(run.client, run.queue, **files).run()
        assert counts(batch) == (1, 1, 0)
        assert batch.input_file_id == str(tmp_path / r"f\xff" / "in.jsonl")

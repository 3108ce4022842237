"""Folders into captions: what is done, once, and what a second run does."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer.pipeline.locks import Locks

ASK = ("--prompt", "What {is} it?")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer(data: bytes) -> str:
    return f"What {{is}} it? {hashlib.sha256(data).hexdigest()[:8]}"


def test_a_folder_becomes_sidecars_and_rows(caption_command, worker, pictures, tmp_path):
    out = tmp_path / "out.jsonl"
    done = caption_command(pictures, *ASK, "--sidecar", "txt", "--sidecar", "json", "-o", out)
    assert done.exit_code == 3
    assert done.stdout.startswith(
        "6 found\n  4 captioned\n  1 passed over, no pictures that mlxq reads: 1 .md\n"
        f"  1 failed: 1 media_invalid ({pictures}/süb dir/z.png)\n4 captions in 0:0"
    )
    assert done.stdout.endswith(f"\ncaptions: beside the pictures (.txt, .json), {out}\n")
    assert f"error[media_invalid]: {pictures}/süb dir/z.png: why" in done.stderr
    found = {row["source"].removeprefix(f"{pictures}/"): row for row in rows(out)}
    assert len(rows(out)) == len(found) == 5
    assert {name: row["text"] for name, row in found.items()} == {
        "a.png": answer(b"one"),
        "b.jpg": answer(b"two"),
        "süb dir/c d.PNG": answer(b"three"),
        "süb dir/same as a.webp": answer(b"one"),
        "süb dir/z.png": "",
    }
    broken = found["süb dir/z.png"]
    assert (broken["status"], broken["code"], broken["message"]) == (
        *("failed", "media_invalid", "why"),
    )
    assert (pictures / "süb dir" / "c d.txt").read_text() == answer(b"three") + "\n"
    assert json.loads((pictures / "b.json").read_text())["text"] == answer(b"two")
    files = {p.name for p in pictures.rglob("*") if p.is_file() and ".mlxq" not in p.parts}
    assert "z.txt" not in files
    assert len(files) == 7 + 8
    assert all(count == 1 for count in worker.asked().values())
    assert len(worker.jobs) == 4


def test_a_second_run_does_only_what_is_missing(caption_command, worker, pictures, tmp_path):
    words = (pictures, *ASK, "--sidecar", "txt", "-o", tmp_path / "out.jsonl")
    caption_command(*words)
    before = (tmp_path / "out.jsonl").read_bytes()
    jobs = len(worker.jobs)
    (pictures / "a.txt").unlink()
    again = caption_command(*words)
    assert (again.exit_code, len(worker.jobs)) == (3, jobs)
    assert "  4 done by an earlier run\n" in again.stdout
    assert "  1 failed in an earlier run: " in again.stdout
    assert (pictures / "a.txt").read_text() == answer(b"one") + "\n"
    assert (tmp_path / "out.jsonl").read_bytes() == before

    (pictures / "new.png").write_bytes(b"four")
    (pictures / "b.jpg").write_bytes(b"other content")
    (pictures / "a.png").rename(pictures / "renamed.png")
    caption_command(*words)
    assert len(worker.jobs) == jobs + 2
    texts = {row["source"].rsplit("/")[-1]: row["text"] for row in rows(tmp_path / "out.jsonl")}
    assert texts["b.jpg"] == answer(b"other content")
    assert texts["renamed.png"] == answer(b"one")
    assert len(rows(tmp_path / "out.jsonl")) == len(texts) == 7
    assert (pictures / "b.txt").read_text() == answer(b"other content") + "\n"

    caption_command(pictures, "--prompt", "Else?", "--sidecar", "txt", "-o", words[-1])
    assert (pictures / "b.txt").read_text().startswith("Else? ")


def test_an_output_may_be_added_later(caption_command, worker, pictures, tmp_path):
    out = tmp_path / "out.jsonl"
    caption_command(pictures, *ASK, "-o", out)
    jobs, before = len(worker.jobs), out.read_bytes()
    caption_command(pictures, *ASK, "-o", out, "--sidecar", "txt", "-o", tmp_path / "more.csv")
    assert (len(worker.jobs), out.read_bytes()) == (jobs, before)
    assert (pictures / "a.txt").read_text() == answer(b"one") + "\n"
    with (tmp_path / "more.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5


def test_failed_items_are_done_again_by_themselves(caption_command, worker, pictures, tmp_path):
    words = (pictures, *ASK, "-o", tmp_path / "out.csv")
    caption_command(*words)
    jobs = len(worker.jobs)
    (pictures / "new.png").write_bytes(b"not now")
    again = caption_command(*words, "--retry-failed")
    assert (again.exit_code, len(worker.jobs)) == (3, jobs + 1)
    original, worker.lua.client = worker.client, worker.client
    worker._text = lambda job: ("mended", "")  # the picture itself did not change
    mended = caption_command(*words, "--retry-failed")
    assert (mended.exit_code, len(worker.jobs)) == (0, jobs + 2)
    assert original is worker.client
    with (tmp_path / "out.csv").open() as file:
        found = {row["source"].rsplit("/")[-1]: row["text"] for row in csv.DictReader(file)}
    assert found["z.png"] == "mended"
    assert len(found) == 5


def test_only_failures_of_what_is_asked_now_are_told(caption_command, worker, pictures):
    failing = caption_command(pictures, *ASK, "--sidecar", "txt")
    assert "z.png" in failing.stderr
    again = caption_command(pictures, *ASK, "--sidecar", "txt")
    assert (again.exit_code, again.stderr.count("z.png")) == (3, 1)
    worker._text = lambda job: ("fine", "")
    other = caption_command(pictures, "--prompt", "Else?", "--sidecar", "txt")
    assert (other.exit_code, other.stderr.count("z.png")) == (0, 0)


def test_a_folder_without_pictures_is_told(caption_command, tmp_path):
    done = caption_command(tmp_path, *ASK, "--sidecar", "txt")
    assert (done.exit_code, "no pictures there" in done.stderr) == (2, True)


def test_the_window_bounds_what_is_in_flight(caption_command, worker, tmp_path):
    for number in range(60):
        (tmp_path / f"{number:02}.png").write_bytes(b"%d" % number)
    done = caption_command(tmp_path, *ASK, "-o", tmp_path / "o.jsonl", "--window", "7", "--ordered")
    assert done.exit_code == 0
    assert 0 < worker.most_waiting <= 7
    names = [row["source"][-6:] for row in rows(tmp_path / "o.jsonl")]
    assert names == [f"{number:02}.png" for number in range(60)]


def test_existing_captions(caption_command, worker, pictures, tmp_path):
    mine = pictures / "a.txt"
    mine.write_text("by hand")
    words = (pictures / "a.png", *ASK, "--sidecar", "txt")
    kept = caption_command(*words)
    assert (kept.exit_code, mine.read_text(), worker.jobs) == (0, "by hand", [])
    assert "1 already had a caption" in kept.stdout
    for _ in range(2):
        caption_command(*words, "--existing", "append")
        assert mine.read_text() == f"by hand\n{answer(b'one')}\n"
    caption_command(*words, "--existing", "overwrite")
    assert mine.read_text() == answer(b"one") + "\n"
    assert len(worker.jobs) == 2

    out = tmp_path / "out.jsonl"
    out.write_text('{"theirs": 1}')
    refused = caption_command(pictures / "b.jpg", *ASK, "-o", out)
    assert refused.exit_code == 2
    assert "--existing" in refused.stderr
    for _ in range(2):
        caption_command(pictures / "b.jpg", *ASK, "-o", out, "--existing", "append")
        assert [row.get("theirs") for row in rows(out)] == [1, None]
    caption_command(pictures / "b.jpg", *ASK, "-o", out, "--existing", "overwrite")
    assert [row["text"] for row in rows(out)] == [answer(b"two")]


def test_a_mirrored_folder_and_names_that_meet(caption_command, worker, pictures, tmp_path):
    (pictures / "a.jpg").write_bytes(b"another a")
    out = tmp_path / "captions"
    done = caption_command(pictures, *ASK, "--sidecar", "caption", "--out-dir", out)
    assert (out / "süb dir" / "c d.caption").read_text() == answer(b"three") + "\n"
    assert not (pictures / ".mlxq").exists()
    assert done.exit_code == 3
    assert "error[output_failed]: " in done.stderr
    assert "a.caption is the file of" in done.stderr
    other = tmp_path / "full"
    words = (pictures, *ASK, "--sidecar", "caption", "--out-dir", other, "--full-names")
    caption_command(*words)
    assert (other / "a.png.caption").read_text() == answer(b"one") + "\n"
    assert (other / "a.jpg.caption").read_text() == answer(b"another a") + "\n"


def test_two_runs_cannot_write_one_output(caption_command, worker, pictures, tmp_path):
    locks = Locks()
    locks.take(tmp_path / "out.jsonl")
    refused = caption_command(pictures, *ASK, "-o", tmp_path / "out.jsonl")
    assert refused.exit_code == 2
    assert "error[output_in_use]" in refused.stderr
    locks.release()
    assert caption_command(pictures, *ASK, "-o", tmp_path / "out.jsonl").exit_code == 3


def test_a_dry_run_changes_nothing(caption_command, server, pictures, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = caption_command(pictures, *ASK, "--sidecar", "txt", "--dry-run")
    assert done.exit_code == 0
    assert f"caption {pictures}/a.png\n" in done.stdout
    assert done.stdout.endswith("4 caption, 1 reuse\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_parts_of_the_items(caption_command, worker, pictures, tmp_path):
    parts: list[str] = []
    for number in (1, 2, 3):
        out = tmp_path / f"{number}.jsonl"
        caption_command(pictures, *ASK, "-o", out, "--shard", f"{number}/3")
        parts += [row["source"] for row in rows(out)]
    assert len(parts) == len(set(parts)) == 5
    caption_command(pictures, *ASK, "-o", tmp_path / "l.jsonl", "--limit", "2", "--shuffle")
    assert len(rows(tmp_path / "l.jsonl")) == 2
    sidecars = (*ASK, "--sidecar", "txt", "--shard")
    assert caption_command(pictures, *sidecars, "1/2").exit_code in (0, 3)
    assert caption_command(pictures, *sidecars, "2/2").exit_code in (0, 3)
    assert len(list(pictures.rglob("*.txt"))) == 4


def test_events_for_scripts(caption_command, worker, pictures, tmp_path):
    done = caption_command(pictures, *ASK, "-o", tmp_path / "o.jsonl", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in events] == ["item"] * 5 + ["summary"]
    assert (events[-1]["done"], events[-1]["failed"], events[-1]["reused"]) == (4, 1, 1)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["pics", "--prompt", "x"], 2, "say where captions go"),
        (["pics", "-o", "o.jsonl"], 2, "--prompt"),
        (["pics", "--prompt", " ", "-o", "o.jsonl"], 2, "error[empty_prompt]"),
        (["nowhere", "--prompt", "x", "-o", "o.jsonl"], 2, "nowhere"),
        (["pics", "--prompt", "x", "-o", "o.xml"], 2, "error[unsupported]"),
        (["pics", "--prompt", "x", "-o", "o.tar"], 2, "o-%06d.tar"),
        (["pics", "--template", "{a.b}", "-o", "o.jsonl"], 2, "{a.b}"),
        (["pics", "--prompt", "x", "-o", "o.jsonl", "--shard", "5/4"], 2, "shard"),
        (["pics", "--prompt", "x", "-o", "o.jsonl", "--regex", "("], 2, "pattern"),
        (
            ["pics", "--prompt", "x", "-o", "o.jsonl", "--column", "x=y"],
            2,
            "--column x=y: must",
        ),
        (["pics", "--prompt", "x", "--out-dir", "d", "-o", "o.jsonl"], 2, "--sidecar"),
    ],
)
def test_mistakes_are_told_before_anything_begins(
    caption_command, pictures, monkeypatch, words, code, text
):
    monkeypatch.chdir(pictures.parent)
    done = caption_command(*words)
    assert (done.exit_code, text in done.output) == (code, True), done.output
    assert not (pictures.parent / "o.jsonl").exists()


def test_a_server_that_does_not_answer_is_named(caption_command, pictures, tmp_path):
    url = "redis://127.0.0.1:1/0"
    done = caption_command(pictures, *ASK, "-o", tmp_path / "o.jsonl", "--redis-url", url)
    assert done.exit_code == 4
    assert "error[queue_unavailable]" in done.stderr


def test_files_that_are_none(caption_command, worker, pictures, tmp_path):
    os.mkfifo(pictures / "pipe.png")
    (pictures / "gone.png").symlink_to("nowhere")
    done = caption_command(pictures, *ASK, "-o", tmp_path / "o.jsonl")
    assert done.exit_code == 3
    codes = {Path(row["source"]).name: row.get("code") for row in rows(tmp_path / "o.jsonl")}
    assert codes["pipe.png"] == codes["gone.png"] == "media_not_found"
    assert sum(code is None for code in codes.values()) == 4


def test_without_a_worker_the_user_is_told(server, queue, pictures, tmp_path):
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url}
    words = [str(pictures), *ASK, "-o", str(tmp_path / "o.jsonl"), "-q", queue]
    command = [sys.executable, "-m", "mlxq_producer", "caption", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert line.startswith("no worker is up")

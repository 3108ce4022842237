"""Values that no output can hold as they are: one item's matter, and readers take the rest."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlxq_producer.pipeline.item import Item, Outcome, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.sinks import CsvLines, JsonLines, LineFile
from mlxq_producer.pipeline.template import Template

HALF, BYTE = "half \ud83d", "\udcff"


def strict(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def rows(path: Path) -> dict[str, dict[str, Any]]:
    found = [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["source"]: row for row in found}


def test_numbers_and_halves_of_a_manifest(caption_command, worker, tmp_path):
    """In rows of every kind, in archives, sidecars, ledger, --json, and again in the next run."""
    for name in "abcdef":
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text(
        '{"image": "a.png", "score": NaN, "more": [Infinity, {"x": -Infinity}]}\n'
        '{"image": "b.png", "score": "\\ud83d", "\\udc00": 1}\n'
        '{"image": "c.png", "score": "line\u2028end\\u0000\\u001b"}\n'
        '{"image": "\\ud83d.png", "score": 1}\n'
        '{"image": "https://x/\\udcff.png", "score": 1}\n'
        '{"image": "d.png", "score": 1}\n'
    )
    out = tmp_path / "out"
    outputs = [out / name for name in ("r.jsonl", "r.csv", "r.parquet")]
    sidecars = ("--sidecar", "json", "--sidecar", "txt", "--out-dir", out / "side")
    where = [word for path in outputs for word in ("-o", path)]
    words = (manifest, "--template", "x {filename}", *where, *sidecars, "--json")
    first = caption_command(*words)
    for line in first.stdout.splitlines():
        strict(line)
    found = rows(out / "r.jsonl")
    a, b, c = (found[str(tmp_path / f"{name}.png")] for name in "abc")
    assert a["fields"] == {"image": "a.png", "score": None, "more": [None, {"x": None}]}
    assert b["fields"] == {"image": "b.png", "score": r"\ud83d", r"\udc00": 1}
    assert c["fields"]["score"] == "line\u2028end\0\x1b"
    failed = {source for source, row in found.items() if row["status"] == "failed"}
    assert failed == {str(tmp_path / r"\ud83d.png"), r"https://x/\xff.png"}
    assert strict((out / "side" / "a.json").read_text())["fields"] == a["fields"]
    with (out / "r.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [strict(row["fields"]) for row in table] == [row["fields"] for row in found.values()]
    parquet = pq.read_table(out / "r.parquet").to_pylist()
    assert {row["source"] for row in parquet} == set(found)

    before = {path: path.read_bytes() for path in outputs[:2]}
    again = caption_command(*words)
    assert again.exit_code == first.exit_code == 3
    assert {path: path.read_bytes() for path in outputs[:2]} == before


def test_a_prompt_that_is_no_text_fails_alone(caption_command, worker, tmp_path):
    manifest = tmp_path / "rows.jsonl"
    lines = [
        '{"n": 1, "tags": "\\ud83d"}',
        '{"n": 2, "tags": ["x", NaN]}',
        '{"n": 3, "tags": "ok"}',
    ]
    manifest.write_text("\n".join(lines))
    out = tmp_path / "r.jsonl"
    words = ("--text-only", "--template", "tags: {tags}", "--column", "id=n", "-o", out)
    assert caption_command(manifest, *words).exit_code == 3
    found = rows(out)
    assert {name: row.get("code") for name, row in found.items()} == {
        "1": "invalid_job",
        "2": None,
        "3": None,
    }
    assert "prompt holds half" in found["1"]["message"]
    assert sorted(job.prompt for job in worker.jobs) == ["tags: ok", "tags: x, "]


def test_names_that_are_no_text(caption_command, worker, tmp_path):
    """Folders, members of archives: each is one item, and is told."""
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    (folder / os.fsdecode(b"p\xfe.png")).write_bytes(b"one")
    with tarfile.open(folder / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo(os.fsdecode(b"k\xfd.png"))
        info.size = 3
        archive.addfile(info, io.BytesIO(b"two"))
    out = tmp_path / "out"
    where = ("-o", out / "r.jsonl", "-o", out / "x%03d.tar", "--sidecar", "txt")
    words = (folder, folder / "a.tar", "-p", "what?", *where, "--out-dir", out / "side")
    for _ in range(2):
        done = caption_command(*words, "--shard", "1/1")
        assert done.exit_code == 0, done.stderr
        home = str(tmp_path / r"f\xff")
        assert set(rows(out / "r.jsonl")) == {rf"{home}/p\xfe.png", rf"{home}/a.tar!k\xfd"}
    with tarfile.open(out / "x000.tar") as archive:
        names = archive.getnames()
    assert {r"p\xfe.png", r"k\xfd.png"} <= set(names)


def test_manifests_and_ids_that_are_no_text(caption_command, worker, tmp_path):
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"text": "a"}\n{"id": "\\ud83d", "text": "b"}\n')
    words = (folder / "rows.jsonl", "--text-only", "-p", "what?", "--column", "id=id")
    for _ in range(2):
        done = caption_command(*words, "-o", tmp_path / "r.jsonl")
        assert done.exit_code == 0, done.stderr
        home = str(tmp_path / r"f\xff")
        assert set(rows(tmp_path / "r.jsonl")) == {f"{home}/rows.jsonl:1", r"\ud83d"}


def test_values_of_tables_that_json_has_no_word_for(caption_command, worker, tmp_path):
    day = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC).replace(tzinfo=None)
    table = pa.table(
        {
            "id": ["a", "b"],
            "score": [float("nan"), float("inf")],
            "when": [day, None],
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "raw": [b"x", b"\xff"],
            "text": ["x", "y"],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    out = tmp_path / "r.jsonl"
    how = ("--text-only", "--template", "{text}{score}", "--column", "id=id")
    done = caption_command(tmp_path / "rows.parquet", *how, "-o", out)
    assert done.exit_code == 0, done.stderr
    assert rows(out)["a"]["fields"] == {
        "id": "a",
        "score": None,
        "when": "2026-01-02T03:04:00",
        "price": "1.50",
        "text": "x",
    }
    assert sorted(job.prompt for job in worker.jobs) == ["x", "y"]


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "a\0b", "a\x85\u2028b"])
def test_any_text_is_one_record(tmp_path, text):
    row = Row.of(Item("a"), Outcome(text=text))
    data = CsvLines.header + CsvLines().line(row) + CsvLines().line(row)
    found = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert [one["text"] for one in found] == [text.replace("\0", "\ufffd")] * 2
    line = JsonLines().line(row).decode()
    assert line.splitlines() == [line.removesuffix("\n")]
    assert strict(line)["text"] == text


def test_a_template_takes_no_number_for_text():
    values = {"a": float("nan"), "b": float("-inf"), "c": None, "d": [float("inf"), 1], "e": 1.5}
    assert Template("{a}|{b}|{c}|{d}|{e}").render(values) == "|||, 1|1.5"


def torn(data: bytes) -> dict[str, bytes]:
    return {
        "zeros at the end": data[:-20] + bytes(20),
        "zeros in the last row": data[:-20] + bytes(19) + b"\n",
        "no newline": data[:-1] + b"}",
        "shorter": data[:-20],
        "longer": data + b'{"source": "half',
    }


@pytest.mark.parametrize("kind", [JsonLines, CsvLines])
def test_a_line_file_whose_end_is_torn_is_made_again(tmp_path, kind):
    path, ledger = tmp_path / "out", Ledger(tmp_path / "ledger")
    sink = LineFile(path, kind())
    sink.open(ledger, "skip")
    for name in "ab":
        item, row = Item(name), Row.of(Item(name), Outcome(text="a text of some length"))
        sink.write(item, row)
        ledger.write(name, "s", row, sink.sizes())
    sink.finish(ledger)
    data = path.read_bytes()
    for how, broken in torn(data).items():
        path.write_bytes(broken)
        sink.open(ledger, "skip")
        sink.finish(ledger)
        assert path.read_bytes() == data, how


@pytest.mark.parametrize("name", ["r.parquet", "x%03d.tar"])
def test_a_file_that_lost_its_end_is_made_again(caption_command, worker, pictures, tmp_path, name):
    out = tmp_path / "out"
    words = (pictures / "a.png", pictures / "b.jpg", "-p", "what?", "-o", out / name)
    assert caption_command(*words).exit_code == 0
    [path] = [p for p in out.iterdir() if p.name != ".mlxq"]
    data, jobs = path.read_bytes(), len(worker.jobs)
    path.write_bytes(data[:-700])
    assert caption_command(*words).exit_code == 0
    [path] = [p for p in out.iterdir() if p.name != ".mlxq"]
    assert path.stat().st_size == len(data)
    assert len(worker.jobs) == jobs


def test_rows_that_are_nested_without_end_fail_alone(caption_command, worker, tmp_path):
    deep = "[" * 100_000
    good = '{"image": "https://example.com/a.png", "text": "good"}'
    (tmp_path / "rows.jsonl").write_text(f'{{"a": {deep}\n{good}\n')
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in (("k.png", b"one"), ("k.json", deep.encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    out = tmp_path / "r.jsonl"
    words = (tmp_path / "rows.jsonl", tmp_path / "a.tar", "-", "-p", "what?", "-o", out)
    done = caption_command(*words, stdin=f'{{"a": {deep}\n')
    assert done.exit_code == 3
    codes = [row.get("code") for row in rows(out).values()]
    assert sorted(map(str, codes)) == ["None", "bad_message", "bad_message", "bad_message"]


def test_outputs_whose_names_are_no_text(caption_command, worker, pictures, tmp_path):
    names = [os.fsdecode(name) for name in (b"r\xff.jsonl", b"r\xff.parquet", b"x\xff%03d.tar")]
    where = [word for name in names for word in ("-o", tmp_path / name)]
    for _ in range(2):
        done = caption_command(pictures / "a.png", "-p", "what?", *where)
        assert done.exit_code == 0, done.stderr
    assert len(rows(tmp_path / names[0])) == 1
    out = tmp_path / "again.jsonl"
    done = caption_command(tmp_path / names[1], "-p", "x", "--column", "image=source", "-o", out)
    assert (done.exit_code, len(rows(out))) == (0, 1)

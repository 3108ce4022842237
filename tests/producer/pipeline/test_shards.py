"""Webdataset archives as outputs."""

from __future__ import annotations

import json
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer.pipeline.item import Item, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.shards import Shards
from mlxq_producer.pipeline.sources import Sources
from mlxq_schemas.errors import ConfigError

ASK = ("--prompt", "What is it?")


def members(path: Path) -> dict[str, bytes]:
    """Names and contents; each name once."""
    with tarfile.open(path, "r:") as archive:
        found = [(m.name, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
    assert len(found) == len(dict(found))
    return dict(found)


def samples(folder: Path) -> dict[str, Item]:
    """What our own source finds in the archives, by where it came from; each once."""
    paths = sorted(folder.glob("*.tar"))
    found = [item for path in paths for item in Sources([str(path)]).items()]
    by_source = {str(item.values["source"]): item for item in found}
    assert len(by_source) == len(found)
    assert all(item.error is None for item in found)
    return by_source


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".mlxq")


def test_pictures_and_captions_and_rows(caption_command, worker, pictures, tmp_path):
    out = tmp_path / "out"
    words = (pictures, *ASK, "-o", out / "x%03d.tar", "-o", out / "rows.jsonl", "--ordered")
    done = caption_command(*words, "--tar-items", "3")
    assert (done.exit_code, names(out)) == (3, ["rows.jsonl", "x000.tar", "x001.tar"])
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    by_name = {row["source"].removeprefix(f"{pictures}/"): row for row in rows}
    first = members(out / "x000.tar")
    assert list(first) == [
        f"{key}{suffix}"
        for key, kind in (("a", ".png"), ("b", ".jpg"), ("süb dir/c d", ".png"))
        for suffix in (kind, ".txt", ".json")
    ]
    assert first["süb dir/c d.png"] == b"three"
    assert first["a.txt"].decode() == by_name["a.png"]["text"]
    assert json.loads(first["b.json"]) == by_name["b.jpg"]
    assert list(members(out / "x001.tar")) == [
        f"süb dir/same as a{suffix}" for suffix in (".webp", ".txt", ".json")
    ]
    assert len(rows) == 5  # the broken one is here, and in no archive

    before = {name: (out / name).read_bytes() for name in names(out)}
    jobs = len(worker.jobs)
    caption_command(*words)
    assert {name: (out / name).read_bytes() for name in names(out)} == before
    (out / "x000.tar").unlink()
    caption_command(*words)
    assert {source: item.media for source, item in samples(out).items()} == {
        str(pictures / name): data
        for name, data in {
            "a.png": b"one",
            "b.jpg": b"two",
            "süb dir/c d.PNG": b"three",
            "süb dir/same as a.webp": b"one",
        }.items()
    }
    assert len(worker.jobs) == jobs


def test_what_is_captioned_anew_is_in_one_archive(caption_command, worker, pictures, tmp_path):
    out = tmp_path / "out"
    words = (pictures, *ASK, "-o", out / "%d.tar", "--tar-items", "2", "--ordered")
    caption_command(*words)
    assert len(samples(out)) == 4
    (pictures / "a.png").write_bytes(b"new")
    (pictures / "b.jpg").write_bytes(b"broken")
    caption_command(*words)
    found = samples(out)
    assert names(out) == ["1.tar", "2.tar"]  # nothing was left of the first
    assert found[f"{pictures}/a.png"].media == b"new"
    assert len(found) == 3
    caption_command(pictures, "--prompt", "Else?", *words[3:])
    texts = [item.values["txt"] for item in samples(out).values()]
    assert len(texts) == 3
    assert all(text.startswith("Else? ") for text in texts)


def test_keys_that_meet_and_names_with_dots(caption_command, worker, tmp_path):
    contents = {
        name: name.encode() for name in ("a.png", "a.jpg", "b.c.png", "b_c.png", ".d.e/f.png")
    }
    for name, data in contents.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    sources = [tmp_path / "in" / name for name in contents]
    (tmp_path / "out").mkdir()
    caption_command(*sources, *ASK, "-o", tmp_path / "out" / "x-%d.tar")
    found = {Path(source).name: item.media for source, item in samples(tmp_path / "out").items()}
    assert found == {Path(name).name: data for name, data in contents.items()}


def test_an_item_that_an_output_refuses_is_in_no_archive(
    caption_command, worker, pictures, tmp_path
):
    (pictures / "a.jpg").write_bytes(b"another a")  # its sidecar would be that of a.png
    out = tmp_path / "out"
    caption_command(pictures, *ASK, "--sidecar", "txt", "-o", out / "%d.tar", "-o", out / "o.jsonl")
    rows = [json.loads(line) for line in (out / "o.jsonl").read_text().splitlines()]
    good = {row["source"] for row in rows if row["status"] == "done"}
    assert samples(out).keys() == good
    assert (len(rows), len(good)) == (6, 4)


def test_rows_of_text_and_addresses(caption_command, worker, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"tags": "t", "n": 1}\n{"url": "https://example.org/a.png"}\n'
    )
    out = tmp_path / "out"
    words = (tmp_path / "rows.jsonl", "--template", "Hi {tags}", "-o", out / "%d.tar")
    done = caption_command(*words, "--text-only")
    assert done.exit_code == 3
    [text, row] = members(out / "0.tar").items()
    assert text[0].endswith("_jsonl:1.txt")
    assert json.loads(row[1])["fields"] == {"tags": "t", "n": 1}
    address = caption_command("https://example.org/a.png", *ASK, "-o", tmp_path / "%d.tar")
    assert (address.exit_code, "error[output_failed]" in address.stderr) == (3, True)


def test_archives_of_others(caption_command, worker, pictures, tmp_path):
    theirs = tmp_path / "x-0004.tar"
    theirs.write_bytes(b"theirs")
    words = (pictures / "a.png", *ASK, "-o", tmp_path / "x-%04d.tar")
    refused = caption_command(*words)
    assert (refused.exit_code, "--existing" in refused.stderr) == (2, True)
    caption_command(*words, "--existing", "append")
    assert theirs.read_bytes() == b"theirs"
    assert "a.png" in members(tmp_path / "x-0005.tar")
    caption_command(*words, "--existing", "overwrite")
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["x-0000.tar"]


def opened(path: Path, **limits: int) -> tuple[Shards, Ledger]:
    ledger, shards = Ledger(None), Shards(path, **limits)
    shards.open(ledger, "skip")
    return shards, ledger


def test_bytes_bound_an_archive_and_say_what_a_picture_is(tmp_path):
    kinds = {"png": b"\x89PNG", "jpg": b"\xff\xd8", "webp": b"RIFF....WEBP", "bin": b"what"}
    shards, ledger = opened(tmp_path / "%d.tar", size=40_000)
    for number in range(12):
        data = list(kinds.values())[number % 4] + bytes(8000)
        shards.write(Item(f"rows:{number}", data), Row(f"rows:{number}", "done", "text"))
    shards.finish(ledger)
    paths = sorted(tmp_path.glob("*.tar"))
    assert len(paths) == 4
    assert all(path.stat().st_size <= 40_000 + 1024 for path in paths)
    suffixes = [name.rpartition(".")[2] for path in paths for name in members(path)][::3]
    assert suffixes == [*kinds] * 3


def test_a_picture_that_changed_meanwhile_does_not_get_a_wrong_caption(
    caption_command, worker, pictures, tmp_path
):
    answer: Any = worker._text

    def change(job: Any) -> Any:
        (pictures / "a.png").write_bytes(b"changed meanwhile")
        return answer(job)

    worker._text = change
    words = (pictures / "a.png", *ASK, "-o", tmp_path / "%d.tar")
    done = caption_command(*words)
    assert (done.exit_code, samples(tmp_path)) == (3, {})
    assert "changed while it was captioned" in done.stderr
    assert caption_command(*words).exit_code == 0
    [item] = samples(tmp_path).values()
    assert item.media == b"changed meanwhile"


@pytest.mark.parametrize("fit", [0, 3])
def test_a_sample_that_does_not_fit_on_the_disk_is_in_neither_archive_nor_ledger(tmp_path, fit):
    shards, ledger = opened(tmp_path / "%d.tar")
    names = [f"{number}.png" for number in range(fit + 1)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (fit * 9728 + 5000, hard))
    try:
        for name in names[:-1]:
            shards.write(Item(name, bytes(8000), relative=name), Row(name, "done", "text"))
        last = Item(names[-1], bytes(8000), relative=names[-1])
        with pytest.raises(ConfigError, match=r"cannot write .*0\.tar"):
            shards.write(last, Row(last.name, "done", "text"))
        shards.finish(ledger)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    whole = [name for path in tmp_path.glob("*.tar") for name in members(path)][::3]
    assert whole == names[:-1]
    assert [ledger.has_sample(str(tmp_path / "%d.tar"), name) for name in names] == [
        name in whole for name in names
    ]
    assert len(list(tmp_path.iterdir())) == (fit > 0)  # nothing hidden stays behind


@pytest.mark.parametrize("name", ["x.tar", "%d-%d.tar", "%s.tar", "100%.tar"])
def test_a_name_without_one_number(tmp_path, name):
    with pytest.raises(ConfigError, match="%06d"):
        Shards(tmp_path / name)

"""Where items come from."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from mlxq_producer.errors import NothingFound
from mlxq_producer.pipeline.counting import count
from mlxq_producer.pipeline.sources import Choice, Sources
from mlxq_schemas.errors import ConfigError


def names(*sources: Path | str, **more: object) -> list[str]:
    return [item.name for item in Sources([str(s) for s in sources], **more).items()]  # type: ignore[arg-type]


def test_folders_files_patterns_and_urls(pictures, monkeypatch):
    monkeypatch.chdir(pictures)
    assert names("b.jpg", "http://x/y.png?z=1") == ["b.jpg", "http://x/y.png?z=1"]
    assert set(names("*.png", "*/z.*")) == {"a.png", "süb dir/z.png"}
    assert "süb dir/c d.PNG" in names("**/*.PNG")
    assert names(".") == [
        "a.png",
        "b.jpg",
        *(f"süb dir/{n}" for n in ("c d.PNG", "same as a.webp", "z.png")),
    ]
    with pytest.raises(ConfigError, match="nothing matches"):
        names("*.nothing")
    with pytest.raises(ConfigError, match="no file"):
        names("nothing.png")


def test_lists_may_name_files_of_their_own_folder(pictures):
    (pictures / "list.txt").write_text(
        "a.png\n\nsüb dir/z.png\nhttp://x/y\n../secret.png\n/etc/passwd\n"
    )
    items = list(Sources([str(pictures / "list.txt")]).items())
    assert [item.error.code if item.error else None for item in items] == [
        *(None, None, None, "media_forbidden", "media_forbidden"),
    ]
    assert items[0].media == pictures / "a.png"
    allowed = Sources([str(pictures / "list.txt")], roots=[pictures.parent]).items()
    assert [item.error is None for item in allowed] == [True, True, True, True, False]


def test_lines_of_lists_that_are_comments(pictures, monkeypatch):
    monkeypatch.chdir(pictures)
    (pictures / "#1.png").write_bytes(b"x")
    lines = ["# the best ones\n", "a.png\n", "  \n", "#b.jpg\n", "./#1.png\n", "# end"]
    (pictures / "list.txt").write_text("".join(lines))
    sources = Sources(["list.txt"])
    assert [Path(item.name).name for item in sources.items()] == ["a.png", "#1.png"]
    assert count(sources) == 2
    assert count(Sources(["list.txt", "https://x/list.txt", "http://x/a.csv"])) == 4
    assert [Path(i.name).name for i in Sources(["-"], stdin=lines).items()] == ["a.png", "#1.png"]
    with pytest.raises(NothingFound):
        Sources(["-"], stdin=lines[:1]).check()


def test_stdin_has_paths_urls_or_rows():
    lines = [
        "/some/where.png\n",
        "https://x/y.png\n",
        '{"image": "a.png", "tags": "t"}\n',
        "{oops\n",
    ]
    items = list(Sources(["-"], stdin=lines).items())
    assert [item.name for item in items] == ["/some/where.png", "https://x/y.png", "a.png", "-:4"]
    assert items[2].values["tags"] == "t"
    assert items[3].error is not None


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_manifests(tmp_path, suffix):
    table = [{"pic": "a.png", "key": "1", "tags": "x, y"}, {"pic": "b.png", "key": "2", "tags": ""}]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    elif suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist(table), path)
    else:
        mark = "," if suffix == ".csv" else "\t"
        lines = [["pic", "key", "tags"], *(list(row.values()) for row in table)]
        path.write_text("".join(mark.join(f'"{c}"' for c in line) + "\n" for line in lines))
    columns = {"image": "pic", "id": "key"}
    items = list(Sources([str(path)], columns).items())
    assert [(item.name, item.media) for item in items] == [
        ("1", tmp_path / "a.png"),
        ("2", tmp_path / "b.png"),
    ]
    assert items[0].values["tags"] == "x, y"
    [wrong, _] = Sources([str(path)], {"image": "nope"}).items()
    assert wrong.error is not None
    assert "no column nope; it has key, pic, tags" in wrong.error.message


def test_a_bad_line_is_one_bad_item(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"image": "a.png"}\n{oops\n[1]\n{"image": 5}\n{"image": "b.png"}\n')
    items = list(Sources([str(path)]).items())
    assert [item.error.code if item.error else None for item in items] == [
        *(None, "bad_message", "bad_message", "media_not_found", None),
    ]


def test_archives(tmp_path):
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        for name, data in {
            "x/1.png": b"one",
            "x/1.json": b'{"tags": ["a", "b"]}',
            "x/2.txt": b"no picture",
            "../3.jpg": b"three",
            "../3.txt": b"old text",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    one, two, three = Sources([str(tmp_path / "data.tar")]).items()
    assert (one.media, one.values["tags"], one.relative) == (b"one", ["a", "b"], "x/1.png")
    assert two.error is not None
    assert (three.media, three.values["txt"], three.relative) == (b"three", "old text", "3.jpg")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "data.tar").read_bytes()[:1200])
    with pytest.raises(ConfigError, match="no tar file"):
        names(tmp_path / "cut.tar")


@pytest.mark.parametrize("name", ["data.tar.gz", "data.TGZ", "packed.tar"])
def test_archives_that_are_packed(tmp_path, name):
    data = random.Random(1).randbytes(5000)
    with tarfile.open(tmp_path / name, "w:gz") as archive:
        info = tarfile.TarInfo("x/1.avif")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    [item] = Sources([str(tmp_path / "*.[tT]*")]).items()
    assert (item.name, item.media) == (f"{tmp_path / name}!x/1", data)
    packed = (tmp_path / name).read_bytes()
    wrong = bytes([packed[-6] ^ 1])  # of the checksum
    for broken in (packed[:2000], packed[:-9], packed[:-6] + wrong + packed[-5:]):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(ConfigError, match="no tar file"):
            names(tmp_path / name)


def test_a_dataset_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = {"image": [{"bytes": b"one", "path": None}], "label": ["x"]}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "data"))
    [item] = Sources([str(tmp_path / "data")]).items()
    assert (item.media, item.values["label"]) == (b"one", "x")


def test_choices_are_disjoint_and_repeatable(pictures):
    every = names(pictures)
    source = Sources([str(pictures)])
    parts = [[i.name for i in Choice((n, 3)).of(source.items())] for n in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(every)
    mixed = [[i.name for i in Choice(shuffle=True, seed=4).of(source.items())] for _ in range(2)]
    assert mixed[0] == mixed[1]
    assert sorted(mixed[0]) == sorted(every)
    assert len(list(Choice(limit=2).of(source.items()))) == 2

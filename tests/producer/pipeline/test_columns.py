"""Rows of tables: each has its picture, or is a failed item; none is answered as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer import Producer, caption
from mlxq_producer.errors import NoImageColumn
from mlxq_producer.pipeline.columns import missing
from mlxq_producer.pipeline.sources import Sources
from mlxq_producer.pipeline.template import Template
from mlxq_schemas.errors import ConfigError, InvalidJob

ASK = ("--prompt", "x")


def codes(path: Path, **columns: str) -> list[str | None]:
    """The error code of each row, or the name of its picture."""
    sources = Sources([str(path)], columns)
    sources.check()
    return [
        item.error.code if item.error else Path(str(item.media)).name for item in sources.items()
    ]


def table(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "cell",
    [
        *('""', "null", '" \\t "', "0", "false", "5", "true", "{}"),
        *("[]", "[null]", '[""]', "[[]]", '["a.png", null]'),
        *('{"bytes": null, "path": null}', '{"bytes": "", "path": ""}'),
    ],
)
def test_a_cell_without_a_picture_is_a_failed_item(tmp_path, cell):
    path = table(
        tmp_path / "r.jsonl", f'{{"image": "a.png"}}\n{{"image": {cell}, "url": "b.png"}}\n'
    )
    assert codes(path) == ["a.png", "media_not_found"]


def test_a_row_without_the_field_is_a_failed_item_that_keeps_its_other_fields(tmp_path):
    path = table(tmp_path / "r.jsonl", '{"image": "a.png"}\n{"n": 4}\n{"Path": "b.png"}\n')
    _, bad, other = Sources([str(path)]).items()
    assert bad.error is not None
    assert (bad.error.code, dict(bad.fields)) == ("media_not_found", {"n": 4})
    assert "--column image=NAME" in bad.error.message
    assert other.media == tmp_path / "b.png"


def test_a_list_of_one_is_that_one_and_several_are_refused(tmp_path):
    path = table(tmp_path / "r.jsonl", '{"image": ["a.png"]}\n{"image": ["a.png", "b.png"]}\n')
    assert codes(path) == ["a.png", "unsupported"]


def test_empty_cells_of_csv_files(tmp_path):
    path = table(tmp_path / "r.csv", 'image,tags\na.png,x\n,y\n"  ",z\n""\n')
    assert codes(path) == ["a.png", *["media_not_found"] * 3]


def test_cells_beyond_the_header_spoil_only_their_row(tmp_path):
    path = table(tmp_path / "r.csv", "image,tags\na.png,x,\na, b.png,x\nc.png,y\n")
    assert codes(path) == ["a.png", "bad_message", "c.png"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("image;tags\na.png;x, y\n", "r.csv"),
        ("tags;long, too;image\nx;y;a.png\n", "r.csv"),
        ("image\ttags\na.png\tx\n", "r.csv"),
        ("tags|image\nx|a.png\n", "r.csv"),
        ('"image";"a;b"\n"a.png";"x;y"\n', "r.csv"),
        ('"one,two","image"\n"x;y;z","a.png"\n', "r.csv"),
        ("image,tags\na.png,x\n", "r.tsv"),
        ("sep=;\nimage;tags\na.png;x\n", "r.csv"),
        ("image\na.png\n", "r.csv"),
        ("\n\nimage;tags\na.png;x\n", "r.csv"),
        ("tags,Image\nx,a.png\n", "r.csv"),
        ("tags, IMAGE \nx,a.png\n", "r.csv"),
        ("FileName;tags\na.png;x\n", "r.csv"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_separates_columns_is_found_by_the_header(tmp_path, text, name, encoding):
    assert codes(table(tmp_path / name, text, encoding)) == ["a.png"]


def test_other_encodings_of_lines(tmp_path):
    assert codes(table(tmp_path / "r.jsonl", '{"image": "ü.png"}\n', "utf-16")) == ["ü.png"]
    assert codes(table(tmp_path / "r.txt", "ü.png\n", "utf-16")) == ["ü.png"]


def test_names_are_matched_exactly_before_case_is_left_out(tmp_path):
    path = table(tmp_path / "r.csv", "Image,image,url\na.png,b.png,c.png\n")
    assert codes(path) == ["b.png"]
    assert codes(path, image="Image") == ["a.png"]
    assert codes(path, image="URL") == ["c.png"]
    with pytest.raises(NoImageColumn, match="Image, image differ only by case"):
        codes(path, image="IMAGE")


@pytest.mark.parametrize(
    ("header", "columns", "said"),
    [
        ("img_file,tags", {}, "it has img_file, tags: name it with --column image=NAME"),
        ("img_file;tags", {}, "it has img_file, tags"),
        ("Image,IMAGE", {}, "differ only by case"),
        ("image,image", {}, "two columns image"),
        ("image,tags", {"image": "nope"}, "no column nope; it has image, tags"),
        ("image,tags", {"id": "nope"}, "no column nope"),
        (",".join(f"c{n:03}" for n in range(100)), {}, "c019, and 80 more"),
    ],
)
def test_a_table_without_the_column_is_refused(tmp_path, header, columns, said):
    with pytest.raises(NoImageColumn, match=said):
        codes(table(tmp_path / "r.csv", f"{header}\na,b\n"), **columns)


def test_json_lines_are_looked_at_for_columns_too(tmp_path):
    with pytest.raises(NoImageColumn, match="it has a, b"):
        codes(table(tmp_path / "r.jsonl", '{"a": 1}\n{"b": 2}\n'))
    assert codes(table(tmp_path / "r.jsonl", "[1]\n{oops\n")) == ["bad_message"] * 2
    late = '{"a": 1}\n' * 5 + '{"image": "a.png"}\n'
    assert codes(table(tmp_path / "r.jsonl", late)) == [*["media_not_found"] * 5, "a.png"]


HF = [
    {"bytes": b"one", "path": None},
    {"bytes": None, "path": "a.png"},
    {"bytes": None, "path": None},
    {"bytes": b"", "path": ""},
    None,
]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def written(values: list[Any], name: str = "Image") -> Path:
        parquet.write_table(pyarrow.table({name: values, "n": values}), tmp_path / "r.parquet")
        return tmp_path / "r.parquet"

    empty = "media_not_found"
    assert codes(written(HF)) == ["b'one'", "a.png", empty, empty, empty]
    assert codes(written([None, None])) == [empty, empty]
    assert codes(written([b"one", b"", None])) == ["b'one'", empty, empty]
    assert codes(written([["a.png"], [], [None], None])) == ["a.png", empty, empty, empty]
    assert codes(written([float("nan"), 1.0])) == [empty, empty]
    with pytest.raises(NoImageColumn, match="it has n, picture"):
        codes(written(HF, "picture"))
    assert codes(written(HF, "picture"), image="PICTURE")[0] == "b'one'"


def test_csv_of_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": ["a.png", None, float("nan"), " "]})
    frame.to_csv(tmp_path / "r.csv")
    assert codes(tmp_path / "r.csv") == ["a.png", *["media_not_found"] * 3]
    frame.to_json(tmp_path / "r.jsonl", orient="records", lines=True)
    assert codes(tmp_path / "r.jsonl") == ["a.png", *["media_not_found"] * 3]


def test_a_dataset_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"image": HF, "n": [1, 2, 3, 4, 5]})
    made.save_to_disk(str(tmp_path / "data"))
    found = codes(tmp_path / "data")
    assert found == ["b'one'", "a.png", *["media_not_found"] * 3]
    made.rename_column("image", "pic").save_to_disk(str(tmp_path / "other"))
    with pytest.raises(NoImageColumn, match="it has n, pic"):
        codes(tmp_path / "other")
    split = datasets.DatasetDict({"a": made, "b": made.rename_column("image", "pic")})
    split.save_to_disk(str(tmp_path / "split"))
    with pytest.raises(NoImageColumn, match=r"split/b: no column"):
        codes(tmp_path / "split")


@pytest.mark.parametrize("where", [("--embedded",), ("--redis-url", "redis://127.0.0.1:1/0")])
@pytest.mark.parametrize("source", ["r.csv", "*.csv"])
def test_the_command_refuses_before_anything_starts(
    caption_command, tmp_path, monkeypatch, where, source
):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "r.csv", "picture;tags\na.png;x\n")
    done = caption_command(source, *ASK, "-o", "o.jsonl", *where)
    assert done.exit_code == 2
    assert done.stderr.startswith("error[no_image_column]: r.csv: no column with pictures")
    assert "it has picture, tags: name it with --column image=NAME" in done.stderr
    assert not Path("o.jsonl").exists()


def test_the_command_tells_each_row_without_a_picture(caption_command, worker, pictures, tmp_path):
    table(pictures / "rows.csv", "Image;Tags\na.png;x\n;y\n \n")
    out = tmp_path / "o.jsonl"
    done = caption_command(pictures / "rows.csv", "--template", "{Tags}", "-o", out)
    assert (done.exit_code, len(worker.jobs)) == (3, 1)
    assert "columns are separated by ';': Image, Tags" in done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = sorted(str(row.get("code")) for row in rows)
    assert found == ["None", "media_not_found", "media_not_found"]
    assert done.stderr.count("error[media_not_found]") == 2


def test_lines_on_stdin(caption_command, worker, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(pictures)
    lines = '{"IMAGE": "a.png"}\n{"image": ""}\n{"n": 1}\nb.jpg\n'
    done = caption_command("-", *ASK, "-o", tmp_path / "o.jsonl", stdin=lines)
    assert (done.exit_code, len(worker.jobs)) == (3, 2)
    assert "  2 captioned\n  2 failed: 2 media_not_found (" in done.stdout


def test_text_only_rows_have_no_pictures(caption_command, worker, tmp_path):
    table(tmp_path / "r.csv", "q;image\none;a.png\ntwo;\n")
    out = tmp_path / "o.jsonl"
    done = caption_command(tmp_path / "r.csv", "--template", "{q}?", "--text-only", "-o", out)
    assert (done.exit_code, done.stdout[:22]) == (0, "2 found\n  2 captioned\n")
    assert [list(job.media()) for job in worker.jobs] == [[], []]
    assert sorted(json.loads(line)["text"] for line in out.read_text().splitlines()) == [
        *("one?", "two?"),
    ]
    lines = caption_command(
        *("-", "--template", "{q}", "--text-only", "-o", tmp_path / "p.jsonl"),
        stdin='{"q": "three"}\na.png\n',
    )
    assert (lines.exit_code, "error[invalid_job]: -:2" in lines.stderr) == (3, True)


def test_text_only_is_for_rows(tmp_path):
    (tmp_path / "a.png").touch()
    table(tmp_path / "r.csv", "image\na.png\n")
    for given in (tmp_path, tmp_path / "a.png", "http://x/a.png", tmp_path / "*.png"):
        with pytest.raises(ConfigError, match="rows of manifests"):
            Sources([str(given)], text_only=True).check()
    with pytest.raises(ConfigError, match="leave --column"):
        Sources([str(tmp_path / "r.csv")], {"image": "image"}, text_only=True).check()


def test_text_only_from_python(server, queue, worker, tmp_path):
    table(tmp_path / "r.jsonl", '{"q": "one"}\n{"q": "two", "image": "a.png"}\n')
    with Producer(server.url, queue) as producer:
        done = caption(tmp_path / "r.jsonl", template="{q}", text_only=True, producer=producer)
        assert (done.done, done.failed) == (2, 0)
        failed = caption(tmp_path / "r.jsonl", prompt="x", producer=producer)
        assert (failed.done, failed.failed) == (0, 2)
        with pytest.raises(NoImageColumn):
            caption(tmp_path / "r.jsonl", prompt="x", columns={"image": "i"}, producer=producer)


def test_a_failed_row_is_named_once(caption_command, worker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("image,note\n,empty\n")
    done = caption_command("rows.csv", *ASK, "-o", "r.jsonl")
    assert done.exit_code == 3
    assert done.stderr.count("rows.csv:1") == 1


def test_a_misspelt_column_or_field_is_met_with_its_name() -> None:
    assert "did you mean Bild?" in missing("image", "bidl", ["Bild", "text"])
    assert "did you mean" not in missing("image", "photo", ["Bild", "text"])
    with pytest.raises(InvalidJob, match=r"did you mean tags\?"):
        Template("{Tags}").render({"tags": "a"})

"""Files that are no pictures: counted and named, and an error where there is nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from mlxq_producer import caption
from mlxq_producer.errors import NothingFound
from mlxq_producer.pipeline.folders import NO_ENTRY, walk
from mlxq_producer.pipeline.pictures import PICTURES, PassedOver, is_picture
from mlxq_producer.pipeline.sources import Sources

ASK = ("--prompt", "x")
UNREAD = {".heic": 2, ".svg": 1, ".jpg~": 1, "without a suffix": 1}


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Pictures, files that are none, and what nobody would miss."""
    folder = tmp_path / "mixed"
    (folder / "below").mkdir(parents=True)
    (folder / "__MACOSX").mkdir()
    for name in (
        *("a.JPG", "b.jfif", "c.jpe", "below/d.Jp2", "below/e.psd"),
        *("f.heic", "below/g.HEIC", "h.svg", "i.jpg~", "README"),
        *("._a.JPG", ".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX/j.heic"),
        *("a.txt", "b.jfif.caption", "c.json"),
    ):
        (folder / name).write_bytes(name.encode())
    return folder


def items(*sources: Path) -> tuple[list[str], PassedOver]:
    over = PassedOver()
    found = [Path(item.name).name for item in Sources([*map(str, sources)]).items(over)]
    return found, over


def test_the_suffixes_are_those_of_what_a_worker_decodes():
    formats = pytest.importorskip("mlxq_worker.prepare.media.formats")
    Image.init()
    read = {getattr(reader, "format", None) for _, reader in formats.READERS}
    # Read by functions; JPEG's reader takes the first of MPO's.
    read |= {"ICO", "PNG", "PPM", "MPO"}
    theirs = {suffix for suffix, name in Image.registered_extensions().items() if name in read}
    assert theirs - {".pfm"} == PICTURES  # floats, of no known range


def test_the_page_names_them_all():
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
    paragraph = page.split("Pictures are ")[1].split(";")[0]
    assert set(re.findall(r"\.[a-z0-9]+(?=[ `\n])", paragraph)) == PICTURES


def test_each_suffix_that_pillow_can_write_is_decoded():
    media = pytest.importorskip("mlxq_worker.prepare.media")
    names = Image.registered_extensions()
    written = [suffix for suffix in sorted(PICTURES) if names[suffix] in Image.SAVE]
    assert len(written) > 30
    for suffix in written:
        data = io.BytesIO()
        Image.new("RGB", (16, 16), "red").save(data, names[suffix])
        found = media.decode_image(data.getvalue(), f"a{suffix}", media.MediaPolicy())
        assert found.size == (16, 16), suffix


def test_a_folder_tells_what_it_passes_over(mixed):
    found, over = items(mixed)
    assert sorted(found) == ["a.JPG", "b.jfif", "c.jpe", "d.Jp2", "e.psd"]
    assert over == UNREAD


def test_outputs_and_captions_in_a_folder_are_none_of_it(caption_command, worker, mixed):
    (mixed / "shards").mkdir()
    words = (mixed, *ASK, "-o", mixed / "rows.jsonl", "-o", mixed / "shards" / "%03d.tar")
    for _ in range(2):
        done = caption_command(
            *words, "--sidecar", "txt", "--out-dir", mixed / "captions", "--json"
        )
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["passed_over"], done.exit_code) == (UNREAD, 0)
    assert len(list((mixed / "captions").rglob("*.txt"))) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter any folder")
def test_a_folder_that_may_not_be_entered_is_told(mixed):
    (mixed / "below").chmod(0)
    try:
        assert items(mixed)[1][NO_ENTRY] == 1
    finally:
        (mixed / "below").chmod(0o700)


def test_a_folder_that_went_away_is_told(mixed, monkeypatch):
    listdir = os.listdir

    def gone(path):
        if Path(path).name == "below":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", gone)
    assert items(mixed)[1][NO_ENTRY] == 1


def test_many_kinds_are_told_in_few_short_lines():
    over = PassedOver()
    for number in range(3000):
        over.add(f".k{number}")
        over.add(".heic")
    over[".svg"] = 1
    for odd in ("", ".a\nb", ".x" * 50):
        over.add(odd)
    assert len(over) <= 1002
    assert over["of other kinds"] >= 3
    lines = over.told().splitlines()
    assert "3,000 .heic, 1 .svg" in lines[0]
    assert len(lines) <= 5
    assert max(map(len, lines)) <= 80
    assert sum(over.values()) == 6004


def test_the_command_names_what_it_passed_over(caption_command, worker, mixed, tmp_path):
    done = caption_command(mixed, *ASK, "-o", tmp_path / "o.jsonl")
    assert done.exit_code == 0
    assert "2 .heic, 1 .svg, 1 .jpg~" in " ".join(done.stdout.split())
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 80
    dry = caption_command(mixed, *ASK, "-o", tmp_path / "p.jsonl", "--dry-run")
    assert "2 .heic" in dry.stdout
    as_json = caption_command(mixed, *ASK, "--dry-run", "--json")
    assert json.loads(as_json.stdout.splitlines()[-1])["passed_over"] == UNREAD


def nothing_folder(place: Path) -> str:
    (place / "a.heic").touch()
    return "."


def nothing_list(place: Path) -> str:
    (place / "list.txt").write_text("\n \n")
    return "list.txt"


def nothing_table(place: Path) -> str:
    (place / "rows.csv").write_text("image,tags\n")
    return "rows.csv"


def nothing_lines(place: Path) -> str:
    (place / "rows.jsonl").write_text("\n")
    return "rows.jsonl"


def nothing_archive(place: Path) -> str:
    archive_of(place / "x.tar", {"a.heic": b"", "LICENSE": b"", "._b.png": b""})
    return "x.tar"


def nothing_pattern(place: Path) -> str:
    (place / "sub.png").mkdir()
    return "*.png"


def no_match(place: Path) -> str:
    return "*.png"


def nothing_on_stdin(place: Path) -> str:
    return "-"


@pytest.mark.parametrize(
    "make",
    [
        *(nothing_folder, nothing_list, nothing_table, nothing_lines, nothing_archive),
        *(nothing_pattern, no_match, nothing_on_stdin),
    ],
)
@pytest.mark.parametrize("embedded", [True, False])
def test_nothing_found_is_an_error_before_anything_starts(
    caption_command, tmp_path, monkeypatch, make, embedded
):
    monkeypatch.chdir(tmp_path)
    source = make(tmp_path)
    where = ("--embedded",) if embedded else ("--redis-url", "redis://127.0.0.1:1/0")
    done = caption_command(source, *ASK, "-o", "o.jsonl", *where, stdin="\n\n")
    assert done.exit_code == 2
    assert done.stderr.startswith("error[nothing_found]: ")
    assert not Path("o.jsonl").exists()
    assert ("1 .heic" in done.stderr) == (make in {nothing_folder, nothing_archive})
    dry = caption_command(source, *ASK, "--dry-run", "--json", stdin="")
    assert json.loads(dry.stdout)["error"]["code"] == "nothing_found"


def test_nothing_found_from_python(tmp_path):
    with pytest.raises(NothingFound, match="check the path"):
        caption(tmp_path, prompt="x", embedded=True)


def test_lines_that_are_looked_at_first_are_not_lost(caption_command, worker, pictures, tmp_path):
    lines = "".join(f"{pictures / name}\n" for name in ("a.png", "b.jpg"))
    done = caption_command("-", *ASK, "-o", tmp_path / "o.jsonl", stdin=f"\n{lines}")
    assert (done.exit_code, done.stdout[:22]) == (0, "2 found\n  2 captioned\n")


def test_a_part_without_items_is_no_error(caption_command, worker, pictures, tmp_path):
    done = caption_command(pictures, *ASK, "-o", tmp_path / "o.jsonl", "--limit", "0")
    assert done.exit_code == 0


def archive_of(path: Path, members: dict[str, bytes | None]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "elsewhere"
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data or b""))
    return path


def test_an_archive_tells_what_it_passes_over(tmp_path):
    path = archive_of(
        tmp_path / "x.tar",
        {
            "./._a.jfif": b"fork",
            "./a.JFIF": b"one",
            "./a.seg.png": b"mask",
            "__MACOSX/b.png": b"fork",
            "b.heic": b"two",
            "b.json": b"{}",
            "c.heic": b"three",
            "LICENSE": b"words",
            "d.png": None,
            "e.npz": b"",
            "e.png": b"four",
        },
    )
    over = PassedOver()
    found = list(Sources([str(path)]).items(over))
    assert [(item.media, item.error and item.error.code) for item in found] == [
        *((b"one", None), (None, "media_not_found"), (b"four", None)),
    ]
    assert found[0].relative == "a.jfif"
    assert "heic" in str(found[1].error)
    assert over == {
        ".seg.png": 1,
        ".heic": 2,
        "without a suffix": 1,
        "links and devices": 1,
    }


def test_a_sample_that_comes_apart_takes_nobodys_row(caption_command, worker, tmp_path):
    members = {"a.png": b"one", "b.png": b"two", "a.json": b"{}", "b.json": b"{}"}
    out = tmp_path / "o.jsonl"
    for _ in range(2):
        done = caption_command(archive_of(tmp_path / "x.tar", members), *ASK, "-o", out)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        good = {row["source"][-2:] for row in rows if row["status"] == "done"}
        assert (done.exit_code, good, len(rows)) == (3, {"!a", "!b"}, 4)


def test_captions_are_no_items_of_a_pattern(mixed, monkeypatch):
    monkeypatch.chdir(mixed)
    (mixed / "list.txt").write_text("a.JPG\n")
    found, _ = items(Path("*"))
    assert sorted(found) == [
        *("README", "a.JPG", "a.JPG", "b.jfif", "c.jpe", "f.heic", "h.svg", "i.jpg~"),
    ]


@pytest.mark.parametrize("name", ["a.PNG", "x/b.Tiff", "c.tar.jpeg"])
def test_case_and_other_dots_do_not_matter(name):
    assert is_picture(name)
    assert not is_picture(f"{name}.heic")


def test_a_walk_needs_nobody_to_listen(mixed):
    assert len(list(walk(mixed))) == 5

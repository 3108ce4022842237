"""Captions that somebody edited are kept, whatever is asked for now, and named."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer import Producer, caption
from mlxq_producer.pipeline.item import Item, Outcome, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.sidecars import Sidecars

TXT = ("--sidecar", "txt")


@pytest.fixture
def one(tmp_path) -> Path:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"one")
    return folder


def last(done: Any) -> dict[str, Any]:
    return json.loads(done.stdout.splitlines()[-1])


CHANGES = [
    ("--prompt", "Else?"),
    ("--prompt", "x", "--prefix", "sks, "),
    ("--prompt", "x", "--suffix", "."),
    ("--prompt", "x", "--max-length", "3"),
    ("--prompt", "x", "--system", "Be brief."),
    ("--prompt", "x", "--max-tokens", "5"),
    ("--template", "{filename}"),
    ("--prompt", "x", "--model", "answering"),
    ("--prompt", "x"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_edited_caption_is_kept_and_named(caption_command, worker, one, change):
    kinds = ("txt", "caption", "json")
    sidecars = [word for kind in kinds for word in ("--sidecar", kind)]
    caption_command(one, "--prompt", "x", *sidecars)
    mine = [one / f"a.{kind}" for kind in kinds]
    for path in mine:
        path.write_text("by hand")
    done = caption_command(one, *change, *sidecars, "--json")
    assert (done.exit_code, {path.read_text() for path in mine}) == (0, {"by hand"})
    assert (last(done)["edited"], last(done)["edited_files"]) == (3, [*map(str, mine)])
    assert len(worker.jobs) == 1
    again = caption_command(one, *change, *sidecars, "--json", "--existing", "overwrite")
    assert (last(again)["edited"], last(again)["done"]) == (0, 1)
    assert "by hand" not in {path.read_text() for path in mine}


def test_captions_that_nobody_edited_are_replaced(caption_command, worker, one):
    caption_command(one, "--prompt", "x", *TXT, "--sidecar", "json")
    for change in CHANGES[:-1]:
        marks = [(one / name).stat().st_ino for name in ("a.txt", "a.json")]
        done = caption_command(one, *change, *TXT, "--sidecar", "json", "--json")
        assert (last(done)["edited"], last(done)["done"]) == (0, 1)
        assert [(one / name).stat().st_ino for name in ("a.txt", "a.json")] != marks


@pytest.mark.parametrize("saved", ["{}", "{}\n\n", "{}\r\n", "\ufeff{}\r\n"])
def test_how_an_editor_saves_is_no_edit(caption_command, worker, one, saved):
    caption_command(one, "--prompt", "x", *TXT)
    text = (one / "a.txt").read_text().strip()
    (one / "a.txt").write_bytes(saved.format(text).encode())
    done = caption_command(one, "--prompt", "Else?", *TXT, "--json")
    assert (last(done)["edited"], (one / "a.txt").read_text()[:6]) == (0, "Else? ")


def test_other_outputs_have_the_new_text(caption_command, worker, one, tmp_path):
    out = ("-o", tmp_path / "o.jsonl", "--sidecar", "txt", "--sidecar", "json")
    caption_command(one, "--prompt", "x", *out)
    (one / "a.txt").write_text("by hand")
    done = caption_command(one, "--prompt", "Else?", *out)
    assert (done.exit_code, (one / "a.txt").read_text()) == (0, "by hand")
    assert "1 caption in " in done.stdout
    for text in ((tmp_path / "o.jsonl").read_text(), (one / "a.json").read_text()):
        assert json.loads(text)["text"].startswith("Else? ")


def test_a_caption_that_was_deleted_is_written_again(caption_command, worker, one):
    caption_command(one, "--prompt", "x", *TXT)
    (one / "a.txt").write_text("by hand")
    caption_command(one, "--prompt", "Else?", *TXT)
    (one / "a.txt").unlink()
    caption_command(one, "--prompt", "Else?", *TXT)
    assert (one / "a.txt").read_text().startswith("Else? ")
    (one / "a.txt").unlink()
    caption_command(one, "--prompt", "Else?", *TXT)
    assert (one / "a.txt").read_text().startswith("Else? ")


def test_a_file_that_we_never_wrote_is_kept(caption_command, worker, one, tmp_path):
    out = ("-o", tmp_path / "o.jsonl", "--ledger", tmp_path / "l")
    caption_command(one, "--prompt", "x", *out)
    (one / "a.txt").write_text("by hand")
    for prompt in ("x", "Else?"):
        done = caption_command(one, "--prompt", prompt, *out, *TXT, "--json")
        assert ((one / "a.txt").read_text(), last(done)["edited"]) == ("by hand", 1)


def test_a_caption_written_for_what_failed_is_kept(caption_command, worker, one):
    (one / "a.png").write_bytes(b"broken")
    assert caption_command(one, "--prompt", "x", *TXT).exit_code == 3
    (one / "a.txt").write_text("by hand")
    worker._text = lambda job: ("mended", "")
    caption_command(one, "--prompt", "x", *TXT, "--retry-failed")
    assert (one / "a.txt").read_text() == "by hand"


def test_without_a_ledger_every_caption_is_kept(caption_command, worker, one):
    caption_command(one, "--prompt", "x", *TXT)
    before = (one / "a.txt").read_text()
    (one / ".mlxq" / "captions.sqlite").unlink()
    caption_command(one, "--prompt", "Else?", *TXT)
    assert (one / "a.txt").read_text() == before


@pytest.mark.parametrize("edited", [False, True])
def test_a_ledger_without_digests_knows_its_rows(caption_command, worker, one, edited):
    caption_command(one, "--prompt", "x", "--sidecar", "json", *TXT)
    with sqlite3.connect(one / ".mlxq" / "captions.sqlite") as ledger:
        ledger.execute("DROP TABLE written")
    ledger.close()
    if edited:
        (one / "a.txt").write_text("by hand")
    dry = caption_command(one, "--prompt", "Else?", *TXT, "--dry-run")
    assert dry.stdout.endswith("1 edited\n" if edited else "1 caption\n")
    done = caption_command(one, "--prompt", "Else?", *TXT, "--sidecar", "json", "--json")
    assert last(done)["edited"] == edited
    assert (one / "a.txt").read_text().startswith("by hand" if edited else "Else? ")
    assert json.loads((one / "a.json").read_text())["text"].startswith("Else? ")


def test_an_edit_while_the_run_goes_on_is_kept(caption_command, worker, one):
    caption_command(one, "--prompt", "x", *TXT)
    answer = worker._text

    def edit(job: Any) -> tuple[str, str]:
        (one / "a.txt").write_text("by hand")
        return answer(job)

    worker._text = edit
    done = caption_command(one, "--prompt", "Else?", *TXT, "--json")
    assert len(worker.jobs) == 2
    assert ((one / "a.txt").read_text(), last(done)["edited"]) == ("by hand", 1)
    assert not list(one.glob(".mlxq-*"))


def test_a_file_that_appears_while_the_run_goes_on_is_kept(caption_command, worker, one):
    worker._text = lambda job: ((one / "a.txt").write_text("by hand") and "text", "")
    done = caption_command(one, "--prompt", "x", *TXT, "--json")
    assert ((one / "a.txt").read_text(), last(done)["edited"]) == ("by hand", 1)


@pytest.mark.parametrize("full_names", [(), ("--full-names",)])
def test_captions_in_another_folder(caption_command, worker, pictures, tmp_path, full_names):
    where = (*TXT, "--out-dir", tmp_path / "out", *full_names)
    caption_command(pictures, "--prompt", "x", *where)
    mine = tmp_path / "out" / "süb dir" / ("c d.PNG.txt" if full_names else "c d.txt")
    mine.write_text("by hand")
    done = caption_command(pictures, "--prompt", "Else?", *where, "--json")
    assert (mine.read_text(), last(done)["edited"], last(done)["done"]) == ("by hand", 1, 3)
    assert last(done)["items"] == 5


def test_what_was_appended_to_stays(caption_command, worker, one):
    (one / "a.txt").write_text("by hand")
    caption_command(one, "--prompt", "x", *TXT, "--existing", "append")
    both = (one / "a.txt").read_text()
    assert both.startswith("by hand\nx ")
    done = caption_command(one, "--prompt", "Else?", *TXT, "--json")
    assert ((one / "a.txt").read_text(), last(done)["edited"]) == (both, 1)


def test_a_file_of_another_picture_fails_whenever_it_is_met(caption_command, worker, one):
    caption_command(one, "--prompt", "x", *TXT)
    (one / "a.jpg").write_bytes(b"another")
    for _ in range(2):
        done = caption_command(one, "--prompt", "x", *TXT)
        assert (done.exit_code, "a.txt is the file of" in done.stderr) == (3, True)
    assert (one / "a.txt").read_text().startswith("x ")


def test_edits_are_told_at_the_end_but_not_all_of_many(caption_command, worker, tmp_path):
    for number in range(25):
        (tmp_path / f"{number}.png").write_bytes(b"%d" % number)
    caption_command(tmp_path, "--prompt", "x", *TXT)
    for path in tmp_path.glob("*.txt"):
        path.write_text("by hand")
    done = caption_command(tmp_path, "--prompt", "Else?", *TXT)
    assert "25 already had a caption" in done.stdout
    assert "... and 5 more" in done.stdout
    assert done.stdout.count("  /") == 20


class Killed(BaseException):
    """The end of the process, in a test."""


@pytest.mark.parametrize("step", ["begin_file", "end_file", "write"])
@pytest.mark.parametrize("edited", [False, True])
def test_a_kill_between_file_and_ledger(one, tmp_path, monkeypatch, step, edited):
    item = Item(str(one / "a.png"), one / "a.png")
    path = tmp_path / "ledger"

    def write(text: str, *, killed: bool = False) -> list[Path]:
        kept: list[Path] = []
        ledger, beside = Ledger(path), Sidecars(["txt"], None, full_names=False)
        beside.tell = kept.append
        beside.open(ledger, "skip")
        row = Row.of(item, Outcome(text))
        if killed:
            real = getattr(ledger, step)

            def die(*args: Any) -> None:
                if step == "begin_file":
                    real(*args)
                raise Killed

            monkeypatch.setattr(ledger, step, die)
        try:
            beside.write(item, row)
            ledger.write(item.name, text, row, {})
        except Killed:
            assert killed
        finally:
            ledger.close()
        return kept

    write("first")
    write("second", killed=True)
    assert (one / "a.txt").read_text() == ("first\n" if step == "begin_file" else "second\n")
    if edited:
        (one / "a.txt").write_text("by hand")
    assert write("third") == ([one / "a.txt"] if edited else [])
    assert (one / "a.txt").read_text() == ("by hand" if edited else "third\n")
    assert not list(one.glob(".mlxq-*"))


def test_from_python(server, queue, worker, one):
    with Producer(server.url, queue) as producer:
        caption(one, prompt="x", sidecar="txt", producer=producer)
        (one / "a.txt").write_text("by hand")
        summary = caption(one, prompt="Else?", sidecar="txt", producer=producer)
        assert (summary.edited, summary.edited_files) == (1, [str(one / "a.txt")])
        assert (summary.kept, summary.ok, summary.items) == (1, True, 1)
        caption(one, prompt="Else?", sidecar="txt", existing="overwrite", producer=producer)
    assert (one / "a.txt").read_text().startswith("Else? ")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("hand", ["short", "a much longer text than it was before", ""])
def test_an_edited_file_of_rows_is_refused(
    caption_command, worker, pictures, tmp_path, suffix, hand
):
    out = tmp_path / f"o{suffix}"
    caption_command(pictures, "--prompt", "What is it?", "-o", out)
    edited = out.read_text().replace("What is it?", hand, 1)
    out.write_text(edited)
    for prompt in ("What is it?", "Else?"):
        done = caption_command(pictures, "--prompt", prompt, "-o", out)
        assert (done.exit_code, out.read_text()) == (2, edited)
        assert "error[output_edited]" in done.stderr
    out.rename(tmp_path / "mine")
    caption_command(pictures, "--prompt", "What is it?", "-o", out)
    assert len(out.read_text().splitlines()) == len(edited.splitlines())
    caption_command(pictures, "--prompt", "Else?", "-o", out)
    assert "What is it?" not in out.read_text()


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_how_an_editor_saves_rows_is_no_edit(caption_command, worker, one, tmp_path, suffix):
    out = tmp_path / f"o{suffix}"
    caption_command(one, "--prompt", "x", "-o", out)
    before = out.read_bytes()
    out.write_bytes(b"\xef\xbb\xbf" + before.replace(b"\n", b"\r\n"))
    assert caption_command(one, "--prompt", "Else?", "-o", out).exit_code == 0
    assert out.read_bytes() == before.replace(b"x ", b"Else? ")


def test_an_edited_table_is_refused(caption_command, worker, one, tmp_path):
    pytest.importorskip("pyarrow")
    out = tmp_path / "o.parquet"
    for prompt in ("x", "x", "Else?"):
        assert caption_command(one, "--prompt", prompt, "-o", out).exit_code == 0
    out.write_bytes(b"by hand")
    done = caption_command(one, "--prompt", "x", "-o", out)
    assert (done.exit_code, out.read_bytes()) == (2, b"by hand")
    done = caption_command(one, "--prompt", "x", "-o", out, "--existing", "overwrite")
    assert (done.exit_code, out.read_bytes()[:4]) == (0, b"PAR1")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_rows_that_somebody_added_are_not_cut_off(
    caption_command, worker, pictures, tmp_path, kind
):
    out = tmp_path / f"r.{kind}"
    assert caption_command(pictures, "-p", "what?", "-o", out).exit_code != 2
    whole = out.read_bytes() + b"a row of another run\n"
    out.write_bytes(whole)
    again = caption_command(pictures, "-p", "what?", "-o", out)
    assert again.exit_code == 2
    assert "output_edited" in again.stderr
    assert out.read_bytes() == whole

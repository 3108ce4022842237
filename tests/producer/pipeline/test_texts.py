"""Prompts from templates, and what is done with texts; the same from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxq_producer import Producer, caption
from mlxq_producer.pipeline.item import Outcome
from mlxq_producer.pipeline.post import Post
from mlxq_producer.pipeline.template import Template
from mlxq_schemas.errors import ConfigError, InvalidJob

SCHEMA = {"type": "object", "required": ["color"]}


def test_templates_see_the_fields_of_a_row():
    template = Template("{{{filename}}}: {tags}, {none}")
    values = {"filename": "a.png", "tags": ["x", "y"], "none": None}
    assert template.render(values) == "{a.png}: x, y, "
    with pytest.raises(InvalidJob, match="it has filename"):
        template.render({"filename": "a"})
    for wrong in ("{", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}"):
        with pytest.raises(ConfigError):
            Template(wrong)


@pytest.mark.parametrize(
    ("post", "text", "after"),
    [
        (Post(), "  a cat\n", "a cat"),
        (Post(strip=False), " a ", " a "),
        (Post(prefix="sks, ", suffix="."), "a cat", "sks, a cat."),
        (Post(max_length=9), "a red cross here", "a red"),
        (Post(max_length=5), "a red cross", "a red"),
        (Post(max_length=3), "abcdef", "abc"),
        (Post(regex=r"Answer: (.*)"), "Well.\nAnswer: cat", "cat"),
        (Post(regex=r"\d+"), "it is 42 of", "42"),
        (Post(schema=SCHEMA), '```json\n{"color": 1}\n```', '{"color": 1}'),
    ],
)
def test_what_is_done_with_a_text(post, text, after):
    post.prepare()
    assert post.apply(Outcome(text)).text == after


@pytest.mark.parametrize(
    "text", ['{"color": NaN}', '{"color": -Infinity}', '{"color": "\\ud83d"}', "[" * 100_000]
)
def test_json_that_strict_readers_refuse_does_not_meet_a_schema(text):
    pytest.importorskip("jsonschema")
    post = Post(schema={"type": "object"})
    assert post.check('{"color": 1}') is None
    problem = post.check(text)
    assert problem is not None
    assert "JSON" in problem


def test_a_pattern_that_finds_nothing_fails_the_item():
    failed = Post(regex="cat").apply(Outcome("a dog"))
    assert (failed.code, failed.text) == ("post_failed", "")
    assert "a dog" in (failed.message or "")


def test_rows_of_a_manifest_have_prompts_of_their_own(caption_command, worker, pictures, tmp_path):
    table = pictures / "rows.jsonl"
    rows = [{"image": "a.png", "tags": "x"}, {"image": "a.png", "tags": "y"}, {"image": "b.jpg"}]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        done = caption_command(table, "--template", "Tags: {tags}.", "-o", out)
        assert done.exit_code == 3
        found = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(found) == 3
        texts = sorted(row["text"][:9] for row in found)
        assert texts == ["", "Tags: x. ", "Tags: y. "]
        [failed] = [row for row in found if row["status"] == "failed"]
        assert failed["code"] == "invalid_job"
        assert [row["fields"]["tags"] for row in found if row["text"]] == ["x", "y"]
        assert len(worker.jobs) == 2


def test_a_text_that_does_not_meet_the_schema_is_asked_for_again(
    caption_command, worker, pictures, tmp_path
):
    pytest.importorskip("jsonschema")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    worker.answers = ["no json", '{"wrong": 1}', '{"color": "red"}']
    words = (pictures / "a.png", "--prompt", "x", "--json-schema", tmp_path / "schema.json")
    assert caption_command(*words, "-o", tmp_path / "1.jsonl").exit_code == 0
    assert json.loads((tmp_path / "1.jsonl").read_text())["text"] == '{"color": "red"}'
    seeds = [(job.sampling.seed, job.sampling.temperature) for job in worker.jobs]
    assert seeds == [(None, 0.0), (1, 0.7), (2, 0.7)]
    done = caption_command(*words, "-o", tmp_path / "2.jsonl", "--tries", "2")
    assert done.exit_code == 3
    assert "error[post_failed]" in done.stderr
    assert "color" in done.stderr


def test_other_wording_around_a_text_needs_no_model(caption_command, worker, pictures):
    words = (pictures / "a.png", "--prompt", "x", "--sidecar", "txt")
    caption_command(*words)
    caption_command(*words, "--prefix", "sks, ")
    assert (pictures / "a.txt").read_text().startswith("sks, x ")
    assert len(worker.jobs) == 1


def test_from_python(server, queue, worker, pictures, tmp_path):
    seen: list[str] = []
    with Producer(server.url, queue) as producer:
        summary = caption(
            pictures,
            prompt="x",
            system="Be brief.",
            outputs=tmp_path / "o.jsonl",
            producer=producer,
            sampling={"max_tokens": 5},
            each=lambda row: seen.append(Path(row.source).name),
        )
        assert (summary.done, summary.failed, summary.reused, summary.ok) == (4, 1, 1, False)
        assert len(seen) == 5
        assert {job.sampling.max_tokens for job in worker.jobs} == {5}
        assert worker.jobs[0].messages[0].content == "Be brief."
        assert caption([pictures], prompt="x", producer=producer).done == 4
        with pytest.raises(ConfigError, match="one of them"):
            caption(pictures, prompt="x", template="y", producer=producer)

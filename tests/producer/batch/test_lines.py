"""Reading batch files: every bad line is told apart, and the next one is read."""

from __future__ import annotations

import pytest

from batch_files import request
from mlxq_producer.batch import lines as lines_module
from mlxq_producer.batch.lines import BadLine, Request, read_lines, take
from mlxq_producer.batch.seen import Seen
from mlxq_schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "code", "custom_id"),
    [
        ("{oops", "invalid_json_line", None),
        ("[" * 100_000, "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        (request(5), "invalid_custom_id", None),
        (request(""), "invalid_custom_id", None),
        (request("x" * 1025), "invalid_custom_id", None),
        ({**request("a"), "extra": 1}, "unknown_field", "a"),
        ({**request("a"), "method": "GET"}, "invalid_method", "a"),
        ({**request("a"), "url": "/v1/embeddings"}, "invalid_url", "a"),
        ({**request("a"), "url": ["/v1/completions"]}, "invalid_url", "a"),
        ({**request("a"), "body": "text"}, "invalid_body", "a"),
    ],
)
def test_a_bad_line_says_why_and_the_next_is_read(write_lines, line, code, custom_id):
    bad, good = read_lines(write_lines([line, request("next")]))
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.code, bad.custom_id) == (1, code, custom_id)
    assert bad.message.startswith("line 1: ")
    assert isinstance(good, Request)
    assert (good.number, good.custom_id) == (2, "next")


def test_blank_lines_byte_order_mark_and_broken_utf8(tmp_path):
    path = tmp_path / "in.jsonl"
    good = b'{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    path.write_bytes(
        b"\xef\xbb\xbf" + good % b"a" + b"\n \r\n" + b'{"\xff": 1}\n' + good.strip() % b"b"
    )
    found = [(line.number, getattr(line, "code", line.custom_id)) for line in read_lines(path)]
    assert found == [(1, "a"), (4, "invalid_json_line"), (5, "b")]


def test_a_custom_id_stands_for_one_line(write_lines):
    ids = ["a", "b", "a", "\ud800", "\ud800", "c"]
    found = list(read_lines(write_lines([request(i) for i in ids])))
    codes = {line.number: line.code for line in found if isinstance(line, BadLine)}
    assert codes == {3: "duplicate_custom_id", 5: "duplicate_custom_id"}


def test_a_line_that_is_too_long_is_passed_over(write_lines, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_JOB_BYTES", 200)
    path = write_lines([request("a", "x" * 1000), request("b"), request("c", "x" * 300)])
    found = [(line.number, getattr(line, "code", None)) for line in read_lines(path)]
    assert found == [(1, "too_large"), (2, None), (3, "too_large")]


def test_chunks_are_bounded_by_lines_and_by_bytes(write_lines, monkeypatch):
    reader = read_lines(write_lines([request(str(i)) for i in range(10)]))
    assert len(take(reader, 4)) == 4
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", 1)
    assert len(take(reader, 4)) == 1
    monkeypatch.undo()
    assert len(take(reader, 100)) == 5
    assert take(reader, 100) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        next(read_lines(tmp_path / "none.jsonl"))


def test_seen_knows_each_text_once_as_it_grows():
    seen = Seen()
    assert all(seen.add(str(i)) for i in range(5000))
    assert not any(seen.add(str(i)) for i in range(5000))
    assert len(seen) == 5000

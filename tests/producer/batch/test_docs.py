"""What docs/batch.md shows works."""

from __future__ import annotations

import json
import re
from pathlib import Path

from batch_files import rows

PAGE = (Path(__file__).parents[3] / "docs" / "batch.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_line_and_the_python_program(answering, server, queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [line], [program] = blocks("json"), blocks("python")
    (tmp_path / "cat.png").write_bytes(b"bytes")
    (tmp_path / "in.jsonl").write_text(line)
    assert json.loads(line)["body"]["model"] == "any"
    names: dict[str, object] = {}
    exec(program.replace("port=6379", f"port={server.port}").replace("captions", queue), names)
    assert answering.texts == ["Describe the image."]
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ["cat-1"]

"""The end of a run accounts for everything that was found."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

PARTS = ("done", "failed", "skipped", "kept", "still_failed", "repeated", "left_out", "dropped")
ASK = ("--prompt", "x", "--sidecar", "txt")


def summary_of(done: Any) -> dict[str, Any]:
    """The summary of a run with ``--json``, whose parts add up to what was found."""
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["type"] == "summary"
    passed_over = sum(found["passed_over"].values())
    assert found["found"] == sum(found[name] for name in PARTS) + passed_over
    return {name: found[name] for name in PARTS if found[name]}


def numbers(stdout: str) -> list[int]:
    return [int(number) for number in re.findall(r"^ +(\d+) ", stdout, re.MULTILINE)]


@pytest.fixture
def ten(tmp_path):
    folder = tmp_path / "ten"
    folder.mkdir()
    for number in range(10):
        content = "broken" if number == 3 else f"picture {number}"
        (folder / f"{number}.png").write_text(content)
    (folder / "5.txt").write_text("by hand")
    (folder / "film.mp4").write_bytes(b"film")
    return folder


def test_a_run_and_the_next(caption_command, worker, ten):
    first = caption_command(ten, *ASK, "--json")
    assert summary_of(first) == {"done": 8, "failed": 1, "kept": 1}
    again = caption_command(ten, *ASK, "--json")
    assert summary_of(again) == {"skipped": 8, "still_failed": 1, "kept": 1}
    (ten / "3.png").write_text("whole")
    mended = caption_command(ten, *ASK, "--json")
    assert summary_of(mended) == {"skipped": 8, "done": 1, "kept": 1}


@pytest.mark.parametrize("limit", ["0", "1", "7", "10", "99"])
def test_a_limit_leaves_the_rest_out(caption_command, worker, ten, limit):
    done = caption_command(ten, *ASK, "--limit", limit)
    total, *parts = [int(n) for n in re.findall(r"^(?: +)?(\d+) ", done.stdout, re.MULTILINE)][:-1]
    if int(limit) < 10:
        assert f"{10 - int(limit)} left out (--limit {limit})\n" in done.stdout
    assert total == sum(parts)
    assert total == 10 + ("passed over" in done.stdout)


def test_shards_leave_out_each_others_items(caption_command, worker, ten):
    for number in (1, 2, 3):
        words = ("--prompt", "x", "-o", ten.parent / f"{number}.jsonl", "--shard", f"{number}/3")
        found = summary_of(caption_command(ten, *words, "--json"))
        assert found["left_out"] == 10 - found.get("done", 0) - found.get("failed", 0)
    told = caption_command(ten, *words)
    assert "left out (--shard 3/3)\n" in told.stdout


def test_what_is_named_twice_and_what_never_failed(caption_command, worker, ten):
    first = caption_command(ten, ten / "1.png", *ASK, "--json")
    assert summary_of(first) == {"done": 8, "failed": 1, "kept": 1, "repeated": 1}
    (ten / "3.png").write_text("whole")
    (ten / "new.png").write_text("new")
    retried = caption_command(ten, *ASK, "--retry-failed")
    assert "  2 left out (--retry-failed: these have not failed)\n" in retried.stdout
    assert retried.stdout.startswith("12 found\n")
    assert sum(numbers(retried.stdout)) == 12


def test_reasons_are_grouped_with_an_example(caption_command, worker, ten):
    (ten / "4.png").write_text("broken too")
    done = caption_command(ten, *ASK)
    assert f"  2 failed: 2 media_invalid ({ten}/3.png ...)\n" in done.stdout
    assert done.stderr.count("error[media_invalid]: ") == 2
    again = caption_command(ten, *ASK)
    assert f"earlier run: 2 media_invalid ({ten}/3.png ...)\n" in again.stdout
    assert again.stderr.count("error[media_invalid]: ") == 2
    assert "the same line with --retry-failed does the failed ones again\n" in again.stderr

"""What users see in terminals of two sizes, with and without colour, and in a pipe.

``MLXQ_WRITE_SCREENS=1`` writes the fixtures anew; look at them before they are committed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from answering_worker import AnsweringWorker
from mlxq_producer.cli.view import Board, Counts, Entry
from mlxq_producer.cli.view.screen import picture
from terminal import Session, Terminal, steady

SCREENS = Path(__file__).parents[1] / "fixtures" / "screens"
STAND_IN = Path(__file__).parent / "stand_in"
SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
COLOURS = re.compile(rb"\x1b\[[0-9;]*3[0-9](;[0-9;]*)?m")
NAMES = ("sky.png", "a folder with a long name/the picture.jpeg", "図.png", "broken.png", "z.png")


def same_as_fixture(name: str, text: str) -> None:
    path = SCREENS / f"{name}.txt"
    if os.environ.get("MLXQ_WRITE_SCREENS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with pictures, what is none, and a caption that is there already."""
    for name in NAMES:
        path = tmp_path / "pics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "pics" / "film.mp4").write_bytes(b"film")
    (tmp_path / "pics" / "z.txt").write_text("by hand")
    return tmp_path


@pytest.fixture
def environment(server, queue) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLXQ_")}
    return {**kept, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


@pytest.fixture
def worker(server, queue) -> Iterator[AnsweringWorker]:
    with AnsweringWorker(server.url, queue) as running:
        yield running


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "mlxq_producer", *words]


CAPTION = command("caption", "pics", "-p", "What is it?", "--sidecar", "txt", "--window", "1")


def check_colours(session: Session, *, colour: bool) -> None:
    assert bool(COLOURS.search(session.raw)) == colour


@SIZES
def test_caption(environment, worker, place, size):
    session = Terminal(*size).run(CAPTION, environment, place)
    assert session.status == 3
    same_as_fixture(f"caption-{size[0]}x{size[1]}", steady(session.text))
    check_colours(session, colour=True)
    again = Terminal(*size).run(CAPTION, environment, place)
    same_as_fixture(f"caption-again-{size[0]}x{size[1]}", steady(again.text))


@SIZES
def test_caption_under_way(size):
    """The live lines, at a moment that a real run would not come to twice."""
    now = 0.0
    counts = Counts()
    board = Board(
        "captioning",
        lambda: counts,
        total=40,
        where="beside the pictures (.txt)",
        clock=lambda: now,
    )
    for number in range(24):
        now += 0.5
        failed = number == 20
        counts = Counts(counts.done + (not failed), counts.failed + failed, 3, counts.tokens + 21)
        code = "media_invalid" if failed else None
        name = f"pics/holidays in the mountains/DSC_{number:04}.jpeg"
        text = f"a lake between {number} snow-covered mountains, seen from a wooden jetty at dawn"
        board.show(
            Entry(name, "" if failed else text, code, "image file is truncated", good=not failed)
        )
        board.speed()
    console = Console(width=size[0], height=size[1], color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(picture(board, *size))
    same_as_fixture(f"caption-live-{size[0]}x{size[1]}", capture.get())


def test_caption_without_colour(environment, worker, place):
    session = Terminal(colour=False).run(CAPTION, environment, place)
    same_as_fixture("caption-80x24", steady(session.text))
    check_colours(session, colour=False)


def test_caption_in_a_pipe(environment, worker, place):
    done = subprocess.run(CAPTION, env=environment, cwd=place, capture_output=True, check=False)
    assert b"\x1b" not in done.stdout + done.stderr
    text = f"stdout:\n{done.stdout.decode()}\nstderr:\n{done.stderr.decode()}"
    same_as_fixture("caption-piped", steady(text))


@SIZES
def test_demo(environment, place, size):
    environment["PYTHONPATH"] = os.pathsep.join([str(STAND_IN), environment["PYTHONPATH"]])
    environment["TMPDIR"] = str(place)
    session = Terminal(*size).run(command("demo"), environment, place)
    assert session.status == 0
    same_as_fixture(f"demo-{size[0]}x{size[1]}", demo_steady(session.text))
    check_colours(session, colour=True)
    plain = Terminal(*size, colour=False).run(command("demo"), environment, place)
    same_as_fixture(f"demo-{size[0]}x{size[1]}", demo_steady(plain.text))
    check_colours(plain, colour=False)


def test_demo_in_a_pipe(environment, place):
    environment["PYTHONPATH"] = os.pathsep.join([str(STAND_IN), environment["PYTHONPATH"]])
    environment["TMPDIR"] = str(place)
    done = subprocess.run(
        command("demo"), env=environment, cwd=place, capture_output=True, check=False
    )
    text = f"stdout:\n{done.stdout.decode()}\nstderr:\n{done.stderr.decode()}"
    same_as_fixture("demo-piped", demo_steady(text))


def demo_steady(text: str) -> str:
    text = re.sub(r"in \d+\.\d+ s: \d+\.\d+ tokens", "in 0.00 s: 0.0 tokens", text)
    return steady(re.sub(r"\d+\.\d{3} s", "0.000 s", text))


@pytest.fixture
def lines(place: Path) -> Path:
    """A batch file: five good lines, one that asks for two answers, and one that is no JSON."""
    with (place / "in.jsonl").open("w") as file:
        for number in range(6):
            body = {"messages": [{"role": "user", "content": f"Question {number}"}], "model": "any"}
            if number == 3:
                body["n"] = 2
            line = {"custom_id": f"question-{number}", "method": "POST", "body": body}
            file.write(json.dumps({**line, "url": "/v1/chat/completions"}) + "\n")
        file.write("{oops\n")
    return place


BATCH = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--window", "1")


def batch_steady(text: str) -> str:
    return steady(re.sub(r"batch_[0-9a-f]{24}", f"batch_{'0' * 24}", text))


@SIZES
def test_batch(environment, worker, lines, size):
    session = Terminal(*size).run(BATCH, environment, lines)
    assert session.status == 3
    same_as_fixture(f"batch-{size[0]}x{size[1]}", batch_steady(session.text))
    check_colours(session, colour=True)


def test_batch_without_colour(environment, worker, lines):
    session = Terminal(colour=False).run(BATCH, environment, lines)
    same_as_fixture("batch-80x24", batch_steady(session.text))
    check_colours(session, colour=False)


def test_batch_in_a_pipe(environment, worker, lines):
    done = subprocess.run(BATCH, env=environment, cwd=lines, capture_output=True, check=False)
    text = f"stdout:\n{done.stdout.decode()}\nstderr:\n{done.stderr.decode()}"
    same_as_fixture("batch-piped", batch_steady(text))

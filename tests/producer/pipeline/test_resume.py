"""Runs that are killed, and what the next one makes of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer.pipeline.sinks import COLUMNS
from mlxq_producer.pipeline.sources import Sources

SHORT = os.environ.get("MLXQ_TEST_SHORT") == "1"


@pytest.fixture
def environment(server: Any, queue: str) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


def start(environment: dict[str, str], *words: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-m", "mlxq_producer", "caption", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def make_pictures(folder: Path, count: int) -> None:
    """Nested folders with odd names; of a hundred pictures one is a duplicate, one is broken."""
    for number in range(count):
        place = folder / f"d{number % 7} ü" / f"e{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        content = {98: "broken", 99: "picture 0"}.get(number % 100, f"picture {number}")
        (place / f"p {number}.png").write_text(f"{content}")
    for number in range(3):
        (folder / f"d{number} ü" / "loop").symlink_to(folder)


def check_outputs(folder: Path, out: Path, count: int) -> None:
    """Each picture once in the rows; a sidecar beside each but the broken ones."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = {str(path) for path in folder.rglob("*.png")}
    assert len(rows) == count
    assert {row["source"] for row in rows} == names
    broken = {row["source"] for row in rows if row["status"] == "failed"}
    assert broken == {n for n in names if Path(n).read_text() == "broken"}
    assert all(row["code"] == "media_invalid" for row in rows if row["source"] in broken)
    sidecars = {str(path.with_suffix(".png")) for path in folder.rglob("*.txt")}
    assert sidecars == names - broken
    assert not list(folder.rglob(".mlxq-*"))


def killed_and_rerun(
    environment: dict[str, str], tmp_path: Path, worker: Any, count: int, *more: str | Path
) -> None:
    folder, out = tmp_path / "pics", tmp_path / "out.jsonl"
    make_pictures(folder, count)
    words = (folder, "--prompt", "x", "--sidecar", "txt", "-o", out, *more)
    rng = random.Random(count)
    for part in (1, 2, 3):
        process = start(environment, *words)
        target = rng.randrange(count * part // 5, count * (part + 1) // 5)
        until(lambda: lines(out) >= target or process.poll() is not None)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    with start(environment, *words) as process:
        output, error = process.communicate(timeout=600)
    assert process.returncode == 3, error
    check_outputs(folder, out, count)
    assert b"failed" in output
    # What a killed run had sent was not done twice.
    contents = {path.read_text() for path in folder.rglob("*.png")}
    assert len(worker.jobs) == len(contents)


def test_killed_three_times_each_picture_is_written_once(environment, worker, tmp_path):
    worker.pause = 0.004
    killed_and_rerun(environment, tmp_path, worker, 200, "--window", "16")


def test_archives_of_a_killed_run_are_kept_and_the_rest_is_written(environment, worker, tmp_path):
    folder, out = tmp_path / "pics", tmp_path / "out-%04d.tar"
    make_pictures(folder, 200)
    worker.pause = 0.004
    words = (folder, "--prompt", "x", "-o", out, "--tar-items", "20", "--window", "16")
    kept: dict[Path, tuple[int, bytes]] = {}

    def begun(complete: int) -> bool:
        """So many archives are complete, and the next has some samples."""
        if len(archives(tmp_path)) < complete:
            return False
        try:
            return any(path.stat().st_size > 15_000 for path in tmp_path.glob(".out-*"))
        except FileNotFoundError:  # it was completed just now
            return False

    for target in (2, 5):
        with start(environment, *words) as process:
            until(lambda: begun(target) or process.poll() is not None)  # noqa: B023
            process.kill()
            process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        now = archives(tmp_path)
        assert target <= len(now) < 10
        assert kept.items() <= now.items()
        kept = now
    # As if it had been killed while it made an archive anew.
    (tmp_path / ".out-0042.tar.mlxq-tmp").write_bytes(b"half a header")
    with start(environment, *words) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 3, error
    every = archives(tmp_path)
    assert kept.items() <= every.items()
    assert [path.name for path in sorted(every)] == [f"out-{n:04}.tar" for n in range(10)]
    assert not list(tmp_path.glob(".out-*"))
    found = [item for path in sorted(every) for item in Sources([str(path)]).items()]
    whole = {str(p): p.read_bytes() for p in folder.rglob("*.png") if p.read_bytes() != b"broken"}
    assert len(found) == len(whole) == 198
    assert {item.values["source"]: item.media for item in found} == whole
    assert len(worker.jobs) == len({path.read_bytes() for path in folder.rglob("*.png")})


def archives(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Complete archives, by what is another if one was written again."""
    return {path: (path.stat().st_ino, path.read_bytes()) for path in folder.glob("out-*.tar")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_pictures_killed_three_times(environment, worker, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    count = 800 if SHORT else 5000
    table = tmp_path / "out.parquet"
    killed_and_rerun(environment, tmp_path, worker, count, "-o", table)
    found = parquet.read_table(table)
    assert tuple(found.column_names) == COLUMNS
    assert len(set(found["source"].to_pylist())) == found.num_rows == count


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_number_of_pictures(environment, worker, tmp_path):
    if not Path("/proc/self/status").exists():
        pytest.skip("reads its own peak from /proc")
    peaks: list[int] = []
    for count in (400, 1600 if SHORT else 6000):
        folder = tmp_path / str(count)
        make_pictures(folder, count)
        words = ["caption", str(folder), "-p", "x", "-o", str(tmp_path / f"{count}.jsonl")]
        # Of the program alone: what getrusage says begins with the peak of its parent.
        code = (
            "from pathlib import Path\nfrom mlxq_producer.cli import app\n"
            f"try: app({words!r})\nexcept SystemExit: pass\n"
            "status = Path('/proc/self/status').read_text()\n"
            "print('peak', status.split('VmHWM:')[1].split()[0])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.rsplit("peak ", 1)[1]))
    print("peaks, KiB:", peaks)
    assert peaks[1] < peaks[0] * 1.25


def test_terminated_in_order(environment, worker, tmp_path):
    folder, out = tmp_path / "pics", tmp_path / "out.jsonl"
    make_pictures(folder, 90)
    worker.pause = 0.01
    words = (folder, "--prompt", "x", "-o", out, "-o", tmp_path / "out.csv", "--ordered")
    process = start(environment, *words)
    until(lambda: lines(out) >= 10)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert error == b"ended early: the same line goes on where this one stopped\n"
    assert lines(out) + 1 == lines(tmp_path / "out.csv")
    with start(environment, *words) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0
    numbers = [json.loads(line)["source"] for line in out.read_text().splitlines()]
    assert len(numbers) == len(set(numbers)) == 90


def test_what_a_kill_left_at_the_end_of_a_file_is_cut_off(
    caption_command, worker, pictures, tmp_path
):
    out, table = tmp_path / "out.jsonl", tmp_path / "out.csv"
    words = (pictures, "--prompt", "x", "-o", out, "-o", table)
    caption_command(*words)
    before = out.read_bytes(), table.read_bytes()
    with out.open("ab") as file:
        file.write(b'{"source": "half')
    table.write_bytes(before[1][:-20])
    caption_command(*words)
    assert out.read_bytes() == before[0]
    # What is made anew has the order of the items, not that in which they were done.
    assert sorted(table.read_bytes().splitlines()) == sorted(before[1].splitlines())
    out.unlink()
    caption_command(*words)
    assert sorted(out.read_bytes().splitlines()) == sorted(before[0].splitlines())

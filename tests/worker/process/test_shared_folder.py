"""Two workers on one cache folder that is too small for both."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from cache_blocks import file_bytes
from cache_session import text
from mlxq_producer import Producer
from mlxq_worker.cache.disk_care import survey, verify
from mlxq_worker.cache.disk_folder import CacheFolder
from pictures import random_picture
from solo_jobs import ask, texts_alone
from worker_process import PATIENCE, StartWorker

SHORT = os.environ.get("MLXQ_TEST_SHORT") == "1"
JOBS, INSTRUCTIONS = (60, 4) if SHORT else (500, 12)
CAP = 1 << 21
"""About 30 blocks of the bundled model; an instruction takes some 8."""
MEMORY = ("--prefix-cache-bytes", str(1 << 20), "--feature-cache-bytes", str(1 << 16))
QUESTIONS = ("Describe the image in detail.", "How many shapes are there?")


def make_questions(folder: Path) -> list[dict[str, Any]]:
    """Long instructions, some pictures under each, two questions about each picture."""
    rng = random.Random(5)
    pictures = [folder / f"{n}.png" for n in range(16)]
    for path in pictures:
        random_picture(rng).save(path)
    return [
        ask(text(n, 150), path, question)
        for n in range(INSTRUCTIONS)
        for path in rng.sample(pictures, 4)
        for question in QUESTIONS
    ]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_workers_share_a_folder_and_its_bound(
    start_worker: StartWorker, producer: Producer, tmp_path: Path
) -> None:
    questions = make_questions(tmp_path)
    alone = texts_alone(questions, tmp_path, 12)
    assert len(set(alone)) > 12
    folder = CacheFolder(tmp_path / "cache")
    common = ("--cache-dir", str(folder.root), "--media-root", str(tmp_path), *MEMORY)
    options = (*common, "--cache-dir-bytes", str(CAP), "--max-rows", "6")
    workers = [start_worker(*options, model=None) for _ in range(2)]
    rng = random.Random(6)
    asked = {f"j{n}": rng.randrange(len(questions)) for n in range(JOBS)}
    for name, number in asked.items():
        producer.submit(**questions[number], id=name, max_tokens=12)
    most, cached = 0, 0
    for name, number in asked.items():
        result = producer.result(name, wait=PATIENCE * 10)
        assert result.ok, result
        assert result.text == alone[number]
        cached += result.usage.cached_tokens
        most = max(most, file_bytes(folder))
    assert cached > 30 * JOBS
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0, 0]

    assert CAP / 2 < most <= CAP
    assert file_bytes(folder) <= CAP
    assert survey(folder)["written_last_day"] > CAP  # so that some of it had to leave
    assert not list(folder.temporary.iterdir())
    assert verify(folder).clean

    # No two of these begin in the same way, so that what a new worker knows is from the folder.
    start_worker(*options, model=None)
    names = [
        producer.submit(**question, max_tokens=12)
        for question in questions[:: len(questions) // INSTRUCTIONS]
    ]
    again = [producer.result(name, wait=PATIENCE * 10) for name in names]
    assert [result.text for result in again] == alone[:: len(questions) // INSTRUCTIONS]
    assert max(result.usage.cached_tokens for result in again) > 0

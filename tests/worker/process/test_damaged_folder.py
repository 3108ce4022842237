"""A worker whose cache folder is damaged, file by file, while it works and between its lives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cache_blocks import file_bytes, harm
from cache_session import text
from mlxq_producer import Producer
from mlxq_worker.cache.disk_care import survey, verify
from mlxq_worker.cache.disk_folder import CacheFolder
from pictures import random_picture
from solo_jobs import ask, texts_alone
from worker_process import PATIENCE, StartWorker, WorkerProcess

CAP = 1 << 20
"""About 60 blocks of the tiny model; what is asked has some 90."""
MEMORY = ("--prefix-cache-bytes", "100000", "--feature-cache-bytes", "10000")
TOKENS = 8


def make_questions(folder: Path) -> list[dict[str, Any]]:
    """Some instructions, pictures under each, and questions that all share."""
    rng = random.Random(3)
    questions: list[dict[str, Any]] = []
    for n in range(8):
        path = folder / f"{n}.png"
        random_picture(rng).save(path)
        asked = ("Describe the image.", "How many shapes are there?")
        questions += [ask(text(n, 120), path, words) for words in asked]
    return questions


@pytest.mark.parametrize(
    ("harms", "lives"), [(20, 1), pytest.param(200, 6, marks=[pytest.mark.slow, pytest.mark.chaos])]
)
@pytest.mark.timeout(600)
def test_damage_costs_time_and_never_a_text(
    start_worker: StartWorker,
    producer: Producer,
    folders,
    tmp_path: Path,
    harms: int,
    lives: int,
) -> None:
    model = str(folders("qwen3_vl"))
    questions = make_questions(tmp_path)
    alone = texts_alone(questions, tmp_path, TOKENS, model)
    folder = CacheFolder(tmp_path / "cache")
    size = ("--cache-dir", str(folder.root), "--cache-dir-bytes", str(CAP))
    options = (*size, *MEMORY, "--media-root", str(tmp_path), "--max-rows", "4")
    rng = random.Random(harms)

    def ask(harmed: int) -> int:
        """All questions twice, in any order, under so much damage; tokens out of caches."""
        order = rng.sample(range(len(questions)), len(questions)) * 2
        names = [producer.submit(**questions[n], max_tokens=TOKENS) for n in order]
        cached = 0
        for place, (name, number) in enumerate(zip(names, order, strict=True)):
            result = producer.result(name, wait=PATIENCE)
            assert result.ok, result
            assert result.text == alone[number]
            cached += result.usage.cached_tokens
            for _ in range(harmed * (place + 1) // len(order) - harmed * place // len(order)):
                harm(folder.root, rng)
        assert file_bytes(folder) <= CAP
        return cached

    def start() -> WorkerProcess:
        return start_worker(*options, model=model)

    worker = start()
    assert ask(0) > 0
    for life in range(lives):
        ask(harms // lives)
        if life % 2 == 0:
            worker.kill()
        else:
            worker.terminate()
            assert worker.wait() == 0
        harm(folder.root, rng)
        worker = start()
    assert ask(0) > 0
    worker.terminate()
    assert worker.wait() == 0
    assert survey(folder)["blocks"] > 0
    verify(folder)
    assert verify(folder).clean

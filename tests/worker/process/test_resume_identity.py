"""A worker goes on with a text if it would have made it so far: real workers with a real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxq_producer import Producer
from mlxq_schemas import Retrying, Started, Token
from worker_process import PATIENCE, StartWorker


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_changed_generation_config_begins_the_text_anew(
    start_worker: StartWorker, producer: Producer, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders("llama"), tmp_path / "first" / "model"))
    first = start_worker("--grace", "0", model=str(folder))
    producer.submit(id="a", prompt="Count.", max_tokens=1900, ignore_eos=True)
    reader = producer.follow("a")
    while not isinstance(next(reader), Token):
        pass
    first.terminate()
    first.wait()
    same = Path(shutil.copytree(folder, tmp_path / "second" / "another name"))
    second = start_worker("--grace", "0", model=str(same))
    while not isinstance(next(reader), Started):
        pass
    while not isinstance(event := next(reader), Token):
        assert not isinstance(event, Retrying)
    second.terminate()
    second.wait()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3]}))
    start_worker(model=str(folder))
    assert producer.result("a", wait=4 * PATIENCE).type == "finished"
    [retrying] = [event for event in producer.follow("a") if isinstance(event, Retrying)]
    assert retrying.restart
    assert "by another name@" in retrying.message

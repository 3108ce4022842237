"""The examples in docs/ run as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import redis
from PIL import Image
from rq import cron

from mlxq_producer import EmbeddedServer
from mlxq_schemas import DEFAULT_QUEUE, Keys

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    registered: list[object] = []
    monkeypatch.setattr(cron, "register", lambda func, **_: registered.append(func))
    spec = importlib.util.spec_from_file_location("nightly", EXAMPLES / "nightly.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert registered == [module.submit_folder, module.submit_tick]
    return module


def test_nightly_run_submits_each_picture_once(
    nightly: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
        assert nightly.submit_folder(str(tmp_path)) == 3
        assert nightly.submit_folder(str(tmp_path)) == 3
        assert client.xlen(Keys(DEFAULT_QUEUE).jobs()) == 3

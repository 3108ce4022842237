"""Where models compute, and how exactly: pinned before MLX is there, and told in identities."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlxq_schemas.errors import ConfigError
from mlxq_worker.bundled import bundled_model_path
from mlxq_worker.models import load, placement
from mlxq_worker.models.load import load_model
from mlxq_worker.models.placement import TF32_VARIABLE, place, rounding

QUICK = ("mlxq_worker.__main__", "mlxq_worker.cache.__main__", "mlxq_worker.engine")
OTHERS = (
    "mlxq_worker.build",
    "mlxq_worker.cache.bench",
    "mlxq_worker.cache.measure",
    "mlxq_worker.cache.warm",
    "mlxq_worker.engine.bench",
    "mlxq_worker.models.load",
    "mlxq_worker.process.worker",
)
ENTRIES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]

PROGRAM = """
import os, runpy, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            print("MLX sees", os.environ.get("MLX_ENABLE_TF32"))

os.environ.pop("MLX_ENABLE_TF32", None)
os.environ.update(part.split("=") for part in sys.argv[2:])
sys.meta_path.insert(0, Watch())
__import__(sys.argv[1])
import mlx.core
"""


def seen(entry: str, *settings: str) -> str:
    """What is set when MLX is first looked for."""
    command = [sys.executable, "-c", PROGRAM, entry, *settings]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[0]


@pytest.mark.parametrize("entry", ENTRIES)
def test_products_are_exact_whichever_part_is_imported_first(entry: str) -> None:
    assert seen(entry) == "MLX sees 0"


def test_who_wants_tf32_gets_it() -> None:
    assert seen("mlxq_worker.engine", f"{TF32_VARIABLE}=1") == "MLX sees 1"


def test_only_the_worker_imports_mlx() -> None:
    """Whoever comes to MLX by way of us has gone through the package that sets it."""
    for package in ("mlxq_producer", "mlxq_schemas"):
        folder = Path(__import__(package).__file__ or "").parent
        for file in folder.rglob("*.py"):
            assert "import mlx.core" not in file.read_text(encoding="utf-8"), file


def test_tests_compute_on_the_cpu_in_float32() -> None:
    assert placement.on_cpu()
    loaded = load_model()
    assert "float32" in loaded.content


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "is_available", lambda device: device == mx.Device(mx.cpu))
    place("auto")
    place("cpu")
    with pytest.raises(ConfigError, match=r"no gpu .*--device auto or cpu"):
        place("gpu")
    assert placement.on_cpu()


@pytest.mark.parametrize(
    ("value", "gpu", "dtype", "expected"),
    [
        ("1", True, "float32", ("tf32",)),
        ("0", True, "float32", ()),
        (None, True, "float32", ("tf32",)),
        (None, False, "float32", ()),
        ("1", False, "float32", ()),
        ("1", True, "bfloat16", ()),
    ],
)
def test_tf32_is_told_and_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str | None,
    gpu: bool,
    dtype: str,
    expected: tuple[str, ...],
) -> None:
    if value is None:
        monkeypatch.delenv(TF32_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(TF32_VARIABLE, value)
    monkeypatch.setattr(placement, "on_cpu", lambda: not gpu)
    with caplog.at_level(logging.WARNING):
        assert rounding([f"mlx.core.{dtype}", "mlx.core.uint32"]) == expected
    assert (TF32_VARIABLE in caplog.text) == bool(expected)


def test_a_model_that_rounds_otherwise_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(bundled_model_path())
    exact = load_model(folder)
    monkeypatch.setattr(load, "rounding", lambda _: ("tf32",))
    rounded = load_model(folder)
    assert exact.identity != rounded.identity
    assert exact.content != rounded.content

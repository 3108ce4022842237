"""One tiny model of every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from mlxq_worker.models.load import DtypeName, load_model
from subject import Subject

SHOWING = [name for name in tiny_models.FAMILIES if name not in tiny_models.TEXT_ONLY]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model, written on first use."""
    written: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = tiny_models.build(name, tmp_path_factory.mktemp(name))
        return written[name]

    return folder


@pytest.fixture(scope="session")
def load(folders) -> Callable[..., Subject]:
    """A family's tiny model, loaded once in each type."""
    loaded: dict[tuple[str, DtypeName], Subject] = {}

    def get(name: str, dtype: DtypeName = "float32") -> Subject:
        key = (name, dtype)
        if key not in loaded:
            loaded[key] = Subject(load_model(str(folders(name)), dtype))
        return loaded[key]

    return get


@pytest.fixture(scope="session", params=list(tiny_models.FAMILIES))
def subject(request: pytest.FixtureRequest, load) -> Subject:
    """Every family, in float32."""
    return load(request.param)


@pytest.fixture(scope="session", params=SHOWING)
def showing(request: pytest.FixtureRequest, load) -> Subject:
    """Every family that takes images, in float32."""
    return load(request.param)

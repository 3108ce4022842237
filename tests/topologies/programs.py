"""The server programs that can be had here, and what a test says about one that cannot.

The bundled Valkey and a Redis on the PATH are looked for; ``MLXQ_TEST_SERVERS`` may name more
(paths, separated as in PATH). Where ``MLXQ_REQUIRE_SERVERS`` is set, a missing one is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from mlxq_producer.embedded import find_bundled

PLATFORM_LACKS = "no {name} here: install it (on Debian: apt-get install redis-server)"


@dataclass(frozen=True)
class Program:
    """A server program; it plays sentinel too."""

    path: Path
    version: tuple[int, int]
    tls: bool


@cache
def look_at(path: Path) -> Program:
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)", words)
    assert found is not None, words
    # A program without TLS stops at once over this option; one with TLS misses its certificate.
    tried = subprocess.run(
        [path, "--port", "0", "--tls-port", "1", "--logfile", ""],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return Program(path, (int(found[1]), int(found[2])), "No tls-cert-file" in tried.stdout)


def extras() -> dict[str, Path]:
    """The programs of ``MLXQ_TEST_SERVERS`` by name and version."""
    named = filter(None, os.environ.get("MLXQ_TEST_SERVERS", "").split(os.pathsep))
    found = {Path(path): look_at(Path(path)).version for path in named}
    return {f"{path.name}-{major}.{minor}": path for path, (major, minor) in found.items()}


def paths() -> dict[str, Path | None]:
    """Where each program is, by name; None where one is missing."""
    redis = shutil.which("redis-server")
    return {"valkey": find_bundled(), "redis": Path(redis) if redis else None, **extras()}


def program(name: str) -> Program:
    """The program, or the end of the test."""
    path = paths().get(name)
    if path is None:
        missing(PLATFORM_LACKS.format(name=name))
    return look_at(path)


def missing(why: str) -> NoReturn:
    """Skip the test, or fail it where everything must be there."""
    if os.environ.get("MLXQ_REQUIRE_SERVERS"):
        pytest.fail(why)
    pytest.skip(why)

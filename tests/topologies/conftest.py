"""Sites, kept for all tests that want the same one, and workers on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mlxq_producer import Producer
from mlxq_schemas import DEFAULT_QUEUE
from topologies.programs import program
from topologies.sites import BUILDERS, Site
from worker_process import WorkerProcess

MakeSite = Callable[[str, str], Site]


@pytest.fixture(scope="module")
def make_site() -> Iterator[MakeSite]:
    """Starts sites, as ``make_site("valkey", "cluster")``; each once a module."""
    with ExitStack() as stack:
        sites: dict[tuple[str, str], Site] = {}

        def make(name: str, kind: str) -> Site:
            if (name, kind) not in sites:
                server = program(name)
                # Not pytest's own: a socket's path may have 100 characters only.
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlxq-"))
                built = BUILDERS[kind](server, Path(folder).resolve())
                sites[name, kind] = stack.enter_context(built)
            return sites[name, kind]

        yield make


@pytest.fixture
def site(make_site: MakeSite, request: pytest.FixtureRequest) -> Site:
    """The site that the test's parameter names by program and kind, empty."""
    name, kind = request.param
    site = make_site(name, kind)
    site.clear()
    return site


@pytest.fixture
def producer(site: Site) -> Iterator[Producer]:
    with Producer(site.url("producer")) as producer:
        yield producer


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartWorker]:
    """Starts ready workers on the site; the URL is in their environment, with its password."""
    monkeypatch.setenv("MLXQ_REDIS_URL", site.url("worker"))
    monkeypatch.setenv("MLXQ_QUEUE", DEFAULT_QUEUE)
    started: list[WorkerProcess] = []

    def start(*options: str, model: str | None = "noop:") -> WorkerProcess:
        chosen = ("--model", model) if model else ()
        worker = WorkerProcess(tmp_path / f"worker-{len(started)}.log", *chosen, *options)
        started.append(worker)
        worker.wait_ready()
        return worker

    yield start
    for worker in started:
        worker.close()

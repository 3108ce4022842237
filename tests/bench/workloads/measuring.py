"""Run a workload through a generator, and count what it computed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.workloads.asking import Workload
from bench.workloads.ideal import Least, Names, Prompt, least
from bench.workloads.reads import Reads
from bench.workloads.settings import OFF, SETTINGS, Setting, Wanted
from mlxq_worker.backend import Backend
from mlxq_worker.build import build_backend
from mlxq_worker.engine import BatchGenerator, Prepared, Request

LOOK_AHEAD = 8
"""Requests that wait in the generator, as a worker's next jobs do."""
Place = tuple[int, int]
"""Chat and turn."""


@dataclass(frozen=True)
class Cell:
    """One pass with one setting: tokens, pictures, bytes and blocks.

    ``least`` and ``least_encoded``: what a cache of this size that knew the future would compute.
    ``wrong``: texts that differ from those without caches.
    """

    workload: str
    setting: str
    name: str
    prompt_tokens: int
    computed: int
    cached: int
    least: int
    pictures: int
    encoded: int
    least_encoded: int
    read_bytes: int
    used_bytes: int
    written_bytes: int
    evicted_memory: int
    evicted_ssd: int
    wrong: int


@dataclass
class Pass:
    """What one run through a workload said and counted; ``begun``: prompts in the order in which
    rows began."""

    name: str
    texts: dict[Place, str] = field(default_factory=dict[Place, str])
    begun: list[Place] = field(default_factory=list[Place])
    cached: int = 0
    used_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])


class Prompts:
    """Prepares each prompt once, whatever runs it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._made: dict[tuple[Place, tuple[str, ...]], Prepared] = {}

    def request(self, backend: Backend, place: Place, said: Mapping[Place, str]) -> Request:
        """The turn at ``place``, after what was ``said`` in its chat."""
        chat, turn = place
        answers = tuple(said[chat, n] for n in range(turn))
        job = self.workload.chats[chat].job(answers, self.workload.answer)
        prepared = self._made.get((place, answers))
        if prepared is None:
            prepared = backend.prepare(job, lambda _: None).prepared or Prepared([])
            self._made[place, answers] = prepared
        return Request(f"{chat} {turn}", prepared=prepared, sampling=job.sampling)


def measure(
    workload: Workload, model: str | None, folder: Path, settings: Sequence[Setting] = SETTINGS
) -> Iterator[Cell]:
    """Every cell of a workload, the one without caches first. ``folder``: where to make folders.

    The first of the ``settings`` has ample memory: it shows what the workload wants.
    """
    prompts = Prompts(workload)
    backend = build_backend(OFF.config(None, model, folder))
    names = Names(_generator(backend)._adapter.media_tokens)
    alone = _run("cold", backend, prompts, Reads(backend.generator))
    prepared = {
        place: prompts.request(backend, place, alone.texts).prepared or Prepared([])
        for place in alone.texts
    }
    backend.generator.close()
    asked = {place: names.prompt(one) for place, one in prepared.items()}
    wanted: Wanted | None = None
    yield from _cells(workload, OFF, [alone], asked, alone, Wanted(0, 0, 0, 0))
    for number, setting in enumerate(settings):
        config = setting.config(wanted, model, folder / str(number))
        backend = build_backend(config)
        reads = Reads(backend.generator)
        passes: list[Pass] = []
        for name in setting.passes:
            if name == "restart":
                backend.generator.close()
                backend = build_backend(config)
                reads = Reads(backend.generator)
            passes.append(_run(name, backend, prompts, reads))
            wanted = wanted or Wanted.of(backend.generator.stats())
        backend.generator.close()
        yield from _cells(workload, setting, passes, asked, alone, wanted or Wanted(0, 0, 0, 0))


def _generator(backend: Backend) -> BatchGenerator:
    assert isinstance(backend.generator, BatchGenerator)
    return backend.generator


def _run(name: str, backend: Backend, prompts: Prompts, reads: Reads) -> Pass:
    """All chats, as a worker would: so many requests in the generator as rows and look-ahead
    allow, a chat's next turn when the last is answered."""
    generator, chats = backend.generator, prompts.workload.chats
    found, before = Pass(name), generator.stats()
    reads.begin()
    waiting = deque((chat, 0) for chat in range(len(chats)))
    inside: dict[str, tuple[Place, float]] = {}
    begun: dict[Place, float] = {}
    while waiting or inside:
        while waiting and len(inside) < backend.max_rows + LOOK_AHEAD:
            place = waiting.popleft()
            request = prompts.request(backend, place, found.texts)
            inside[request.request_id] = (place, time.perf_counter())
            generator.insert([request])
        for response in generator.next():
            if response.error is not None:
                raise response.error
            place, inserted = inside[response.request_id]
            found.texts[place] = found.texts.get(place, "") + response.text
            if response.usage is not None and response.times is not None:
                begun[place] = inserted + response.times.waiting
                found.cached += response.usage.cached_tokens
                del inside[response.request_id]
                if place[1] + 1 < len(chats[place[0]].turns):
                    waiting.append((place[0], place[1] + 1))
        _settle(generator)
    after = generator.stats()
    numbers = (key for key, value in after.items() if isinstance(value, int))
    found.counts = {key: after[key] - before.get(key, 0) for key in numbers}
    found.used_bytes, found.begun = reads.used_bytes, sorted(begun, key=begun.__getitem__)
    return found


def _settle(generator: Any) -> None:
    """Let the folder take what it was offered, so that its speed decides nothing."""
    while generator.stats().get("disk_waiting_bytes", 0):
        time.sleep(0.0005)


def _cells(
    workload: Workload,
    setting: Setting,
    passes: list[Pass],
    asked: dict[Place, Prompt],
    alone: Pass,
    wanted: Wanted,
) -> Iterator[Cell]:
    # A text that is wrong changes the prompts after it: then there is no least to compare with.
    order = [[asked[place] for place in one.begun] for one in passes]
    restarts = [n for n, one in enumerate(passes) if one.name == "restart"]
    for one, prompts, ideal in zip(
        passes, order, least(order, setting.room(wanted), restarts), strict=True
    ):
        yield _cell(workload, setting, one, prompts, ideal, alone)


def _cell(
    workload: Workload,
    setting: Setting,
    one: Pass,
    prompts: list[Prompt],
    ideal: Least,
    alone: Pass,
) -> Cell:
    counts = one.counts
    return Cell(
        workload.name,
        setting.name,
        one.name,
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        computed=counts["prompt_tokens"],
        cached=one.cached,
        least=ideal.tokens,
        pictures=sum(len(prompt.pictures) for prompt in prompts),
        encoded=counts["images"],
        least_encoded=ideal.pictures,
        read_bytes=counts.get("disk_read_bytes", 0),
        used_bytes=one.used_bytes,
        written_bytes=counts.get("disk_written_bytes", 0),
        evicted_memory=counts["prefix_evicted"] + counts["feature_evicted"],
        evicted_ssd=counts.get("disk_evicted_blocks", 0),
        wrong=sum(one.texts[place] != text for place, text in alone.texts.items()),
    )

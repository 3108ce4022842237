"""A worker process on ``noop:`` whose prompts can do harm, by their first word.

``toxic`` kills the process when two of its characters are out. ``breaking`` makes the engine's
step fail there, once in a process. ``flaky`` cannot be prepared the first two times in a process;
``hopeless`` never can; both with an error that may pass. The name that ``--model-name`` gives
stands for the model's identity.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from typing import Final

from mlxq_schemas import Job
from mlxq_schemas.errors import MediaFetchFailed
from mlxq_worker.backend import Backend, BlobReader
from mlxq_worker.cli import main
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.noop import EchoGenerator, build_noop
from mlxq_worker.process import worker as worker_module

AFTER: Final = 2
"""Characters before the harm."""


class HarmfulGenerator(EchoGenerator):
    """Echoes, and does what its prompts say."""

    def __init__(self, max_rows: int, seconds: float) -> None:
        super().__init__(max_rows, seconds)
        self._broken: set[str] = set()

    def next(self) -> list[Response]:
        for row in self._rows:
            if len(row.tokens) < AFTER:
                continue
            if row.prompt.startswith("toxic"):
                print(f"dying beside {len(self._rows) - 1} others", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if row.prompt.startswith("breaking") and row.prompt not in self._broken:
                self._broken.add(row.prompt)
                raise RuntimeError("a broken step")
        return super().next()


def build_harmful(config: WorkerConfig) -> Backend:
    """``noop:[SECONDS]`` with a harmful generator."""
    sound = build_noop(config)
    tries: Counter[str] = Counter()

    def prepare(job: Job, read_blob: BlobReader) -> Request:
        tries[job.id] += 1
        word = (job.prompt or "").split(" ")[0]
        if word == "hopeless" or (word == "flaky" and tries[job.id] <= 2):
            raise MediaFetchFailed("the line is dead")
        return sound.prepare(job, read_blob)

    seconds = float((config.model or "").partition(":")[2] or 0)
    return replace(
        sound,
        generator=HarmfulGenerator(config.max_rows, seconds),
        prepare=prepare,
        identity=config.model_name or sound.identity,
    )


if __name__ == "__main__":
    worker_module.build_noop = build_harmful
    main()

"""What a worker has done since its start."""

from __future__ import annotations

from dataclasses import dataclass

from mlxq_worker.engine.request import Response


@dataclass
class Counters:
    """Since the start: jobs ended, jobs put off, and what was computed, whatever became of its job.

    ``tokens`` were generated; ``prompt_tokens`` are those of the prompts that were begun, once an
    attempt, and ``cached_tokens`` how many of these came from the caches.
    """

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    put_off: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, response: Response) -> None:
        """Count what the engine did for a row."""
        self.tokens += response.token is not None
        usage, times = response.usage, response.times
        if usage is not None and times is not None and times.begun:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled + self.expired

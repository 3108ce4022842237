"""Settings of one worker process."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import InvalidJob
from mlxq_schemas.keys import check_name
from mlxq_schemas.plain import whole

DEFAULT_URL = "redis://127.0.0.1:6379/0"
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "gpu"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def default_name() -> str:
    """A name that no other worker has: host, process, and chance for containers alike in both."""
    host = "".join(c if c.isalnum() or c in "_.-" else "-" for c in socket.gethostname())[:80]
    return f"{host.lstrip('_.-') or 'host'}-{os.getpid()}-{secrets.token_hex(3)}"


def _queue_name(value: str) -> str:
    return _checked("queue", value)


def _worker_name(value: str) -> str:
    return _checked("worker name", value)


def _checked(kind: str, value: str) -> str:
    try:
        return check_name(kind, value)
    except InvalidJob as error:
        raise ValueError(error.message) from error


def _folder(value: Path) -> Path:
    # Without it, every job that names a file would fail for good.
    if not value.is_dir():
        raise ValueError(whole(f"{value} is not a folder"))
    return value


def _named(value: object) -> object:
    # An unset variable in quotes would mean the current folder.
    if value == "":
        raise ValueError("an empty name is no folder: name one, or leave it out")
    return value


class WorkerConfig(BaseModel):
    """Settings of one worker; times in seconds, sizes in bytes or pixels.

    ``model``: a folder, a Hugging Face id, None for the bundled model, or ``noop:[SECONDS]`` for
    an echo without a model (seconds per token). ``model_name``: one more name that jobs may use.
    ``trust_remote_code``: Python in the model's folder may run, with all rights of the worker.
    ``max_cache_bytes``: most bytes of KV cache (0: no limit); rows are admitted by it.
    ``kv_bits``: keys and values of decoding rows in so few bits (None: as they are), one scale
    for ``kv_group_size`` values, in rows of at least ``kv_start`` tokens.
    ``prefix_cache_bytes`` and ``feature_cache_bytes``: most memory for prompts' beginnings and
    encoded pictures (0: off), ``input_cache_bytes`` for pictures made ready to be encoded.
    ``cache_dir``: keep them on disk too, ``cache_dir_bytes`` at most,
    and no more than ``cache_write_budget`` bytes written a day (0: no limit);
    ``cache_ssd_only``: there alone, but for what jobs wait for; ``cache_shared``: believe what
    other users have written there. ``cache_dir_bits``: keys and values there in so few bits
    (None: as they are).
    ``max_attempts`` and ``retry_delay``: tries of a job that meets errors that may pass, and
    seconds before the second one (then doubled). ``look_ahead``: jobs prepared while all rows are
    busy (None: half of ``max_rows``, at least 1). ``lease``: a job of a worker that is silent for
    so long goes to another. ``grace``: time to end running jobs after SIGTERM. ``media_roots``:
    folders whose files jobs may name. ``dtype``: of the weights ("auto": as they are on a GPU,
    float32 on a CPU), ``device``: where they compute ("auto": on the GPU if there is one).
    ``burst``: end when the queue is empty; ``max_jobs``: end after so many jobs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    redis_url: str = Field(default=DEFAULT_URL, repr=False)
    queue: Annotated[str, AfterValidator(_queue_name)] = DEFAULT_QUEUE
    model: str | None = None
    model_name: str | None = None
    trust_remote_code: bool = False
    max_rows: int = Field(default=16, ge=1, le=4096)
    prefill_step: int = Field(default=1024, ge=1)
    max_cache_bytes: int = Field(default=0, ge=0)
    kv_bits: Literal[2, 3, 4, 6, 8] | None = None
    kv_group_size: Literal[32, 64, 128] = 64
    kv_start: int = Field(default=0, ge=0)
    prefix_cache_bytes: int = Field(default=1 << 30, ge=0)
    feature_cache_bytes: int = Field(default=256 << 20, ge=0)
    input_cache_bytes: int = Field(default=256 << 20, ge=0)
    cache_dir: Annotated[Path | None, BeforeValidator(_named)] = None
    cache_dir_bytes: int = Field(default=20 << 30, ge=1)
    cache_write_budget: int = Field(default=0, ge=0)
    cache_ssd_only: bool = False
    cache_shared: bool = False
    cache_dir_bits: Literal[8] | None = None
    look_ahead: int | None = Field(default=None, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    retry_delay: float = Field(default=1.0, ge=0.0, le=600.0)
    lease: float = Field(default=30.0, ge=0.2, le=86_400)
    grace: float = Field(default=25.0, ge=0.0)
    result_ttl: int = Field(default=86_400, ge=1)
    dead_ttl: int = Field(default=7 * 86_400, ge=1)
    name: Annotated[str, AfterValidator(_worker_name)] = Field(default_factory=default_name)
    media_roots: tuple[Annotated[Path, AfterValidator(_folder)], ...] = ()
    allow_http: bool = True
    allow_private_hosts: bool = False
    max_media_bytes: int = Field(default=64 * 1024 * 1024, ge=1)
    max_image_pixels: int = Field(default=100_000_000, ge=1)
    min_image_side: int = Field(default=4, ge=1)
    prepare_threads: int = Field(default=2, ge=1, le=64)
    dtype: Dtype = "auto"
    device: Device = "auto"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    burst: bool = False
    max_jobs: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_a_folder(self) -> Self:
        for name in ("cache_ssd_only", "cache_shared", "cache_dir_bits"):
            if getattr(self, name) and self.cache_dir is None:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} needs a folder: give --cache-dir too")
        return self

    @property
    def capacity(self) -> int:
        """Most jobs taken and not yet ended: the rows, and what is prepared for the next ones."""
        if self.look_ahead is None:
            return self.max_rows + max(1, self.max_rows // 2)
        return self.max_rows + self.look_ahead

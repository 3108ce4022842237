"""``python -m mlxq_worker``: the worker's command line."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from mlxq_schemas.errors import (
    EXIT_DEVICE_FAILED,
    ConfigError,
    DeviceFailed,
    MlxqError,
    QueueError,
)
from mlxq_worker.config import DEFAULT_URL, Device, Dtype, LogLevel, WorkerConfig
from mlxq_worker.options import (
    EXIT_USAGE,
    Command,
    complain,
    duration,
    one_of,
    read_config,
    setting,
    size,
    warn_of_variables,
)
from mlxq_worker.process.logs import set_up
from mlxq_worker.process.signals import StopSignals
from mlxq_worker.process.worker import Worker, any_thread_left

EXIT_OTHER: Final = 1
EXIT_QUEUE: Final = 4

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_DEFAULT = WorkerConfig(name="default")


@app.command(cls=Command)
def run(
    redis_url: Annotated[
        str,
        setting(
            "--redis-url",
            "Server that holds the queue: redis://, rediss://, unix://, redis+sentinel://, redis+cluster://.",
            show_default=False,
        ),
    ] = DEFAULT_URL,
    queue: Annotated[str, setting("--queue", "Name of the queue.")] = _DEFAULT.queue,
    model: Annotated[
        str | None,
        setting(
            "--model",
            "Model folder or Hugging Face id; 'noop:' echoes prompts without a model. "
            "[default: the small bundled model]",
        ),
    ] = None,
    model_name: Annotated[
        str | None, setting("--model-name", "One more name that jobs may call the model by.")
    ] = None,
    trust_remote_code: Annotated[
        bool,
        setting(
            "--trust-remote-code",
            "Run Python that the model's folder brings. It may do all that you may do.",
        ),
    ] = _DEFAULT.trust_remote_code,
    max_rows: Annotated[
        int, setting("--max-rows", "Most jobs computed together.")
    ] = _DEFAULT.max_rows,
    prefill_step: Annotated[
        int, setting("--prefill-step", "Most prompt tokens fed in one step.")
    ] = _DEFAULT.prefill_step,
    max_cache_bytes: Annotated[
        int, size("--max-cache-bytes", "Most KV cache; 0: no limit.", _DEFAULT.max_cache_bytes)
    ] = _DEFAULT.max_cache_bytes,
    kv_bits: Annotated[
        int | None,
        setting("--kv-bits", "Keys and values of decoding rows in 8, 6, 4, 3 or 2 bits."),
    ] = None,
    kv_group_size: Annotated[
        int, setting("--kv-group-size", "Values that share a scale: 32, 64 or 128.")
    ] = _DEFAULT.kv_group_size,
    kv_start: Annotated[
        int, setting("--kv-start", "Rows of fewer tokens stay in full precision.")
    ] = _DEFAULT.kv_start,
    prefix_cache_bytes: Annotated[
        int,
        size(
            "--prefix-cache-bytes",
            "Memory for prompts' beginnings; 0: off.",
            _DEFAULT.prefix_cache_bytes,
        ),
    ] = _DEFAULT.prefix_cache_bytes,
    feature_cache_bytes: Annotated[
        int,
        size(
            "--feature-cache-bytes",
            "Memory for encoded pictures; 0: off.",
            _DEFAULT.feature_cache_bytes,
        ),
    ] = _DEFAULT.feature_cache_bytes,
    input_cache_bytes: Annotated[
        int,
        size(
            "--input-cache-bytes",
            "Memory for decoded and processed pictures; 0: off.",
            _DEFAULT.input_cache_bytes,
        ),
    ] = _DEFAULT.input_cache_bytes,
    cache_dir: Annotated[
        str | None,
        setting("--cache-dir", "Folder that keeps both over restarts.", metavar="DIR"),
    ] = None,
    cache_dir_bytes: Annotated[
        int, size("--cache-dir-bytes", "Most in that folder.", _DEFAULT.cache_dir_bytes)
    ] = _DEFAULT.cache_dir_bytes,
    cache_dir_bits: Annotated[
        int | None, setting("--cache-dir-bits", "Keys and values in that folder in 8 bits.")
    ] = None,
    cache_write_budget: Annotated[
        int,
        size(
            "--cache-write-budget",
            "Most written there in a day; 0: no limit.",
            _DEFAULT.cache_write_budget,
        ),
    ] = _DEFAULT.cache_write_budget,
    cache_ssd_only: Annotated[
        bool,
        setting("--cache-ssd-only", "Keep both in that folder only, not in memory."),
    ] = _DEFAULT.cache_ssd_only,
    cache_shared: Annotated[
        bool, setting("--cache-shared", "Believe what other users have written there.")
    ] = _DEFAULT.cache_shared,
    look_ahead: Annotated[
        int | None,
        setting("--look-ahead", "Jobs prepared while all rows are busy. [default: max rows / 2]"),
    ] = None,
    max_attempts: Annotated[
        int,
        setting("--max-attempts", "Tries of a job that meets errors which may pass."),
    ] = _DEFAULT.max_attempts,
    retry_delay: Annotated[
        float,
        duration(
            "--retry-delay", "Before the second try; then doubled each time.", _DEFAULT.retry_delay
        ),
    ] = _DEFAULT.retry_delay,
    lease: Annotated[
        float,
        duration("--lease", "Silence after which another worker takes a job over.", _DEFAULT.lease),
    ] = _DEFAULT.lease,
    grace: Annotated[
        float,
        duration(
            "--grace",
            "Time to finish running jobs after SIGTERM; the rest goes back.",
            _DEFAULT.grace,
        ),
    ] = _DEFAULT.grace,
    result_ttl: Annotated[
        int, duration("--result-ttl", "How long results and events are kept.", _DEFAULT.result_ttl)
    ] = _DEFAULT.result_ttl,
    dead_ttl: Annotated[
        int, duration("--dead-ttl", "How long dead letters are kept.", _DEFAULT.dead_ttl)
    ] = _DEFAULT.dead_ttl,
    name: Annotated[
        str | None, setting("--name", "Name of this worker. [default: HOST-PID-RANDOM]")
    ] = None,
    media_root: Annotated[
        list[Path] | None,
        setting("--media-root", "Folder whose files jobs may name; may be repeated."),
    ] = None,
    allow_http: Annotated[
        bool, setting("--allow-http/--no-http", "Fetch media from http(s) URLs.")
    ] = _DEFAULT.allow_http,
    allow_private_hosts: Annotated[
        bool,
        setting(
            "--allow-private-hosts/--no-private-hosts",
            "Fetch media from loopback and private addresses too.",
        ),
    ] = _DEFAULT.allow_private_hosts,
    max_media_bytes: Annotated[
        int, size("--max-media-bytes", "Largest medium.", _DEFAULT.max_media_bytes)
    ] = _DEFAULT.max_media_bytes,
    max_image_pixels: Annotated[
        int, setting("--max-image-pixels", "Largest image, in pixels.")
    ] = _DEFAULT.max_image_pixels,
    min_image_side: Annotated[
        int, setting("--min-image-side", "Smallest width or height of an image, in pixels.")
    ] = _DEFAULT.min_image_side,
    prepare_threads: Annotated[
        int, setting("--prepare-threads", "Threads that fetch and prepare media.")
    ] = _DEFAULT.prepare_threads,
    dtype: Annotated[
        str, one_of("--dtype", "Precision of the weights.", get_args(Dtype))
    ] = _DEFAULT.dtype,
    device: Annotated[
        str, one_of("--device", "Where the model computes.", get_args(Device))
    ] = _DEFAULT.device,
    log_level: Annotated[
        str, one_of("--log-level", "Least severe lines.", get_args(LogLevel))
    ] = _DEFAULT.log_level,
    log_json: Annotated[bool, setting("--log-json", "Log one JSON object a line.")] = False,
    burst: Annotated[bool, setting("--burst", "End when the queue is empty.")] = False,
    max_jobs: Annotated[int | None, setting("--max-jobs", "End after so many jobs.")] = None,
) -> None:
    """Run a worker: load a model, take jobs from the queue, publish tokens and results.

    SIGTERM or Ctrl-C ends it in order: running jobs are finished within --grace, the rest goes
    back to the queue. A second signal hands everything back at once. Every option can be set as
    an environment variable: MLXQ_REDIS_URL, MLXQ_QUEUE, MLXQ_MODEL ...

    Exit status: 0 in order, 2 wrong settings or model, 4 no usable server, 6 the device (GPU) fails
    again and again, 1 anything else. Jobs in flight go back to the queue each time.
    """
    fields: dict[str, Any] = {
        key: value
        for key, value in locals().items()
        if key in WorkerConfig.model_fields and value is not None
    }
    fields |= {"media_roots": tuple(media_root or ()), "log_format": "json" if log_json else "text"}
    raise typer.Exit(_run(fields))


def main() -> None:
    """Entry point: runs the command and exits with its status."""
    app(prog_name="mlxq worker")


def _run(fields: dict[str, Any]) -> int:
    warn_of_variables()
    try:
        config = read_config(fields)
    except ConfigError as error:
        return complain(error, EXIT_USAGE)
    set_up(config.log_level, config.log_format)
    with StopSignals() as signals:
        status = _work(config, signals)
        if any_thread_left():
            _leave(status)
    return status


def _work(config: WorkerConfig, signals: StopSignals) -> int:
    try:
        Worker(config, signals).run()
    except ConfigError as error:
        return complain(error, EXIT_USAGE)
    except QueueError as error:
        return complain(error, EXIT_QUEUE)
    except DeviceFailed as error:
        return complain(error, EXIT_DEVICE_FAILED)
    except MlxqError as error:
        return complain(error, EXIT_OTHER)
    except Exception as error:  # noqa: BLE001 - its traceback is in the log already
        return complain(MlxqError(f"{type(error).__name__}: {error}"), EXIT_OTHER)
    return 0


def _leave(status: int) -> None:
    """End the process although a thread hangs in the model."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)

"""``mlxq cache warm``: fill a cache folder before the workers come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, get_args

import typer

from mlxq_schemas import Sampling
from mlxq_schemas.errors import (
    BadMessage,
    ConfigError,
    DeviceFailed,
    MlxqError,
    ModelNotLoaded,
    RemoteCodeNeeded,
)
from mlxq_schemas.plain import to_json
from mlxq_schemas.wire import MAX_JOB_BYTES, parse_job, unpack
from mlxq_worker.cache import told
from mlxq_worker.cache.options import Dir, Shared
from mlxq_worker.config import Device, Dtype, WorkerConfig
from mlxq_worker.options import one_of, read_config, setting, size

if TYPE_CHECKING:
    from mlxq_worker.backend import Backend
    from mlxq_worker.engine.request import Request

EXIT_SOME_FAILED: Final = 3
_DEFAULT: Final = WorkerConfig(name="default")
_PAUSE: Final = 0.001


@dataclass(frozen=True)
class Failure:
    """A line that was passed over; ``line`` counts from 1."""

    line: int
    code: str
    message: str


@dataclass
class Report:
    """What a run has done. ``cached_tokens`` were known already, ``computed_tokens`` were not;
    ``evicted_blocks`` left the folder to make room, ``left_out_blocks`` would have cost others of
    this run; ``disk_failed``: it took no more.
    ``blocks`` and ``bytes`` are all that it holds.
    """

    prompts: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    images: int = 0
    written_blocks: int = 0
    written_bytes: int = 0
    evicted_blocks: int = 0
    left_out_blocks: int = 0
    disk_failed: bool = False
    blocks: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list[Failure])


def warm(
    prompts: Annotated[Path, typer.Argument(help="Jobs as JSON, one a line.", metavar="FILE")],
    folder: Dir,
    model: Annotated[
        str | None,
        setting("--model", "As of the workers. [default: the small bundled model]"),
    ] = None,
    dtype: Annotated[
        str, one_of("--dtype", "As of the workers.", get_args(Dtype))
    ] = _DEFAULT.dtype,
    device: Annotated[
        str, one_of("--device", "As of the workers.", get_args(Device))
    ] = _DEFAULT.device,
    trust_remote_code: Annotated[
        bool, setting("--trust-remote-code", "As of the workers.")
    ] = _DEFAULT.trust_remote_code,
    media_root: Annotated[
        list[Path] | None,
        setting(
            "--media-root",
            "Folder whose files jobs may name, and in which relative paths are looked up; may be "
            "repeated.",
        ),
    ] = None,
    dir_bytes: Annotated[
        int,
        size(
            "--dir-bytes",
            "Most in the folder.",
            _DEFAULT.cache_dir_bytes,
            envvar="MLXQ_CACHE_DIR_BYTES",
        ),
    ] = _DEFAULT.cache_dir_bytes,
    dir_bits: Annotated[int | None, setting("--cache-dir-bits", "As of the workers.")] = None,
    shared: Shared = _DEFAULT.cache_shared,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute prompts' beginnings and pictures, so that workers find them in the folder.

    Lines are jobs as for "mlxq submit --job"; how they sample is checked, and has no effect. Model,
    dtype, device, --cache-dir-bits and media roots must be those of the workers. A line that cannot
    be done is reported and passed over: the exit status is then 3. It is 6 if the device (GPU)
    fails again and again: run it once more then.
    """
    fields: dict[str, Any] = {"model": model, "dtype": dtype, "device": device}
    fields |= {"cache_dir": folder}
    fields |= {"media_roots": tuple(media_root or ()), "cache_dir_bytes": dir_bytes}
    fields |= {"trust_remote_code": trust_remote_code, "cache_shared": shared}
    fields |= {"cache_dir_bits": dir_bits}
    config = read_config({**fields, "max_rows": 1, "name": "warm"})
    try:
        with prompts.open("rb") as lines:
            report = fill(config, lines)
    except OSError as error:
        raise ConfigError(f"cannot read {prompts}: {error.strerror or error}") from error
    except RemoteCodeNeeded:
        raise
    except ModelNotLoaded as error:
        raise ConfigError(error.message) from error
    _show(report, as_json=as_json)
    if report.failed:
        raise typer.Exit(EXIT_SOME_FAILED)


def fill(config: WorkerConfig, lines: BinaryIO) -> Report:
    """Run each line's prompt up to its first token, and wait for the disk.

    Raises :class:`ModelNotLoaded`, :class:`ConfigError` for a folder that cannot be used, and
    :class:`DeviceFailed`: what was computed before it is in the folder.
    """
    # MLX takes seconds to come up, and the other commands do without.
    from mlxq_worker.build import build_backend  # noqa: PLC0415

    backend = build_backend(config, write_at=1)
    report = Report()
    try:
        for number, line in _numbered(lines):
            try:
                _run(backend, _request(backend, number, line), report)
            except DeviceFailed:
                raise  # no line is to blame
            except MlxqError as error:
                report.failed.append(Failure(number, error.code, error.message))
        _read_stats(backend.generator.stats(), report)
    finally:
        backend.generator.close()
    return report


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that hold something, from 1. Of one that is too long, as much as shows that."""
    number = 0
    while line := lines.readline(MAX_JOB_BYTES + 1):
        number += 1
        whole = line
        while len(line) > MAX_JOB_BYTES and not line.endswith(b"\n"):
            line = lines.readline(MAX_JOB_BYTES + 1)
        if whole := whole.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
            yield number, whole


def _request(backend: Backend, number: int, line: bytes) -> Request:
    """Raises :class:`JobError`."""
    if not line.startswith(b"{"):
        raise BadMessage("not a JSON object with a job's fields")
    fields = unpack(line, "the line", MAX_JOB_BYTES)
    direct = {name: fields.pop(name) for name in Sampling.model_fields if name in fields}
    if direct and isinstance(fields.get("sampling", {}), dict):
        fields["sampling"] = {**fields.get("sampling", {}), **direct}
    job = parse_job({"id": f"line-{number}", **fields}).check()
    # What a job samples must be right, as for submit, but has no part in its prompt.
    asked = job.model_copy(update={"sampling": Sampling(max_tokens=1)})
    return backend.prepare(asked, lambda _: None)


def _run(backend: Backend, request: Request, report: Report) -> None:
    """Raises :class:`JobError`."""
    generator = backend.generator
    generator.insert([request])
    while generator.has_work():
        for response in generator.next():
            if response.error is not None:
                raise response.error
            if response.usage is not None:
                report.prompts += 1
                report.images += response.usage.images
        # The queue to the disk is bounded, and what finds it full would not be written.
        while generator.stats()["disk_waiting_bytes"]:
            time.sleep(_PAUSE)


def _read_stats(stats: dict[str, Any], report: Report) -> None:
    report.computed_tokens = stats["prompt_tokens"]
    report.cached_tokens = stats["cached_tokens"]
    for name in ("written_blocks", "written_bytes", "evicted_blocks", "blocks", "bytes"):
        setattr(report, name, stats[f"disk_{name}"])
    report.left_out_blocks = stats["disk_refused_colder"] + stats["disk_refused_too_large"]
    report.disk_failed = stats["disk_write_errors"] > 0


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(asdict(report)))
        return
    for failure in report.failed:
        typer.echo(f"error[{failure.code}]: line {failure.line}: {failure.message}", err=True)
    for line in told.warmed(report):
        typer.echo(line)
    if report.disk_failed or report.evicted_blocks or report.left_out_blocks:
        remedy = "free some of the disk" if report.disk_failed else "give it more --dir-bytes"
        typer.echo(f"not all of it is in the folder: {remedy}", err=True)

"""How a command that failed says so: one line, and an exit code by kind."""

from __future__ import annotations

import signal
import sys
from typing import Any, Final

from mlxq_producer.errors import BatchFailing, RetryErrors, SubmitErrors
from mlxq_schemas.errors import (
    ConfigError,
    Conflict,
    JobError,
    MlxqError,
    QueueFull,
    QueueUnavailable,
    RedisFull,
    WaitTimeout,
)
from mlxq_schemas.plain import to_json

EXIT_OTHER: Final = 1
EXIT_USAGE: Final = 2
EXIT_JOB_NOT_FINISHED: Final = 3
EXIT_QUEUE: Final = 4
EXIT_TIMEOUT: Final = 5
EXIT_PIPE: Final = 141
EXIT_TERMINATED: Final = 143

_EXIT_CODES: Final[tuple[tuple[tuple[type[MlxqError], ...], int], ...]] = (
    ((JobError, ConfigError, Conflict), EXIT_USAGE),
    ((QueueUnavailable, QueueFull, RedisFull), EXIT_QUEUE),
    ((WaitTimeout,), EXIT_TIMEOUT),
    ((BatchFailing,), EXIT_JOB_NOT_FINISHED),
)

EXIT_CODE_HELP: Final = (
    "Exit codes: 0 done; 1 other error; 2 wrong usage or invalid job; 3 job failed, cancelled or "
    "expired; 4 queue unavailable or full; 5 timeout; 6 the worker's device fails; 130 interrupted."
)


def end_in_order_when_terminated() -> None:
    """SIGTERM ends this process as Ctrl-C does, but for the exit code."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    del number, frame
    raise SystemExit(EXIT_TERMINATED)


def report(error: MlxqError, *, as_json: bool) -> None:
    """Say what went wrong: to people on stderr, to scripts as JSON on stdout."""
    if as_json:
        print(to_json({"error": _as_dict(error)}))
    elif isinstance(error, SubmitErrors):
        for position, one in error.errors.items():
            print(f"error[{one.code}]: job number {position + 1}: {one.message}", file=sys.stderr)
    elif isinstance(error, RetryErrors):
        for one in error.errors.values():
            print(f"error[{one.code}]: {one.message}", file=sys.stderr)
    else:
        print(f"error[{error.code}]: {error.message}", file=sys.stderr)


def _as_dict(error: MlxqError) -> dict[str, Any]:
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if isinstance(error, SubmitErrors):
        fields["jobs"] = [{"number": i + 1, **_as_dict(e)} for i, e in error.errors.items()]
    if isinstance(error, RetryErrors):
        fields["jobs"] = [{"id": job_id, **_as_dict(e)} for job_id, e in error.errors.items()]
    return fields


def complain(code: str, message: str) -> None:
    """One line on stderr about a job, whatever its message holds: a name may hold anything."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    print(f"error[{code}]: {shown}", file=sys.stderr)


def complain_of_item(name: str, code: str, message: str | None) -> None:
    """The same about an item, which is named once."""
    rest = (message or "").removeprefix(f"{name}: ")
    complain(code, f"{name}: {rest}")


def exit_code(error: MlxqError) -> int:
    """The exit code for an error; for several, that of the first."""
    if isinstance(error, RetryErrors):
        return exit_code(next(iter(error.errors.values())))
    if isinstance(error, SubmitErrors):
        return exit_code(error.errors[min(error.errors)])
    for kinds, code in _EXIT_CODES:
        if isinstance(error, kinds):
            return code
    return EXIT_OTHER

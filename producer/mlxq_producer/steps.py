"""What an operation asks of its surroundings, so that it is written once for sync and async.

An operation is a generator: it yields a step, is sent the step's answer (or gets an
:class:`~mlxq_schemas.errors.MlxqError` thrown in), and returns its result. The runners in
``sync_runner`` and ``async_runner`` do the waiting and know nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError

from mlxq_schemas import Event
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import MlxqError, QueueError, QueueUnavailable, RedisFull
from mlxq_schemas.scripts import Command, run_script, script_of

T = TypeVar("T")

__all__ = [
    "Call",
    "Command",
    "Listen",
    "Sleep",
    "Step",
    "Steps",
    "Subscribe",
    "Work",
    "call",
    "checked",
    "refusal",
    "resume",
    "run_script",
    "server_time",
]


@dataclass(frozen=True)
class Call:
    """Send commands in one round trip. Answer: a list of replies; a refused one is an error."""

    commands: Sequence[Command]


@dataclass(frozen=True)
class Subscribe:
    """Listen to these channels on a fresh connection. Answer: None, once the server confirmed."""

    channels: Sequence[str]


@dataclass(frozen=True)
class Listen:
    """Wait for a message. Answer: its bytes, or None after ``seconds``."""

    seconds: float


@dataclass(frozen=True)
class Sleep:
    """Wait. Answer: None."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Do what blocks or takes long (file reads). Answer: what ``function`` returns."""

    function: Callable[[], Any]


Step = Call | Subscribe | Listen | Sleep | Work
Steps = Generator[Step | Event, Any, T]
"""An operation that returns a ``T``; events that it yields go to the reader, if there is one."""


def resume(steps: Steps[Any], answer: object) -> Step | Event:
    """The next step, after the answer to the last one (None before the first)."""
    if isinstance(answer, MlxqError):
        return steps.throw(answer)
    return steps.send(answer)


def call(*commands: Command) -> Steps[list[Any]]:
    """Send commands in one round trip; load the scripts that the server does not know."""
    replies: list[Any] = yield Call(commands)
    missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if missing:
        sources = {script_of(commands[i]) for i in missing}
        loads: list[Command] = [("SCRIPT LOAD", source) for source in sources]
        again: list[Any] = yield Call([*loads, *(commands[i] for i in missing)])
        for i, reply in zip(missing, again[len(loads) :], strict=True):
            replies[i] = reply
    return replies


def checked(*commands: Command) -> Steps[list[Any]]:
    """Like :func:`call`, but the first refused command raises."""
    replies = yield from call(*commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise refusal(reply) from reply
    return replies


def server_time() -> Steps[float]:
    """Unix seconds by the server's clock, which all times of a queue are told by."""
    [reply] = yield from checked(("TIME",))
    return seconds_of(reply)


def refusal(reply: Exception) -> MlxqError:
    """The error of ours that stands for an error reply of the server."""
    text = str(reply)
    # From inside a script the server's error code may stand in the middle of the text.
    if isinstance(reply, OutOfMemoryError) or "OOM command not allowed" in text:
        return RedisFull(
            "the Redis server is at its maxmemory limit and takes no more jobs: "
            "wait until workers have caught up, or raise maxmemory"
        )
    if isinstance(reply, ReadOnlyError) or "READONLY " in text:
        return QueueUnavailable(
            "the Redis server is a read-only replica: use the URL of its primary"
        )
    return QueueError(f"the Redis server refused a command: {text}")

"""The Lua scripts of the Redis contract, as text: each step that must not half happen.

They live beside the key names because both sides run them: a producer submits, cancels, and
revives or forgets the dead; a worker does the rest.

In a cluster a message goes by ``SPUBLISH``, through the node that holds the queue and no other.
Commands are written for a single server; :func:`sharded` is what a transport makes of them there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

Command = tuple[str | bytes | int | float, ...]
"""One Redis command: its name, then its arguments."""

ScriptName = Literal[
    "submit",
    "promote",
    "claim",
    "discard",
    "begin",
    "append",
    "retry",
    "finish",
    "hand_back",
    "renew",
    "beat",
    "alive",
    "sweep",
    "health",
    "cancel",
    "revive",
    "rights",
    "forget",
    "unlock",
    "blobs_of",
    "keep_blobs",
    "dismiss",
]


@cache
def script(name: ScriptName) -> str:
    """Source of one script, with the functions that all share in front."""
    folder = files("mlxq_schemas") / "lua"
    parts = (folder / f"{part}.lua" for part in ("common", name))
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def run_script(
    name: ScriptName, keys: Sequence[str], args: Sequence[str | bytes | float]
) -> Command:
    """The command that runs a script."""
    return ("EVALSHA", _sha(script(name)), len(keys), *keys, *args)


def script_of(command: Command) -> str:
    """The source of the script that a command of :func:`run_script` runs."""
    return _sources()[str(command[1])]


def sharded(command: Command) -> Command:
    """The same command for a node of a cluster."""
    match command:
        case ("PUBLISH", *rest):
            return ("SPUBLISH", *rest)
        case ("EVALSHA", sha, *rest):
            return ("EVALSHA", _sha(_sharded_source(_sources()[str(sha)])), *rest)
        case ("SCRIPT LOAD", source):
            return ("SCRIPT LOAD", _sharded_source(str(source)))
        case _:
            return command


def _sharded_source(source: str) -> str:
    return source.replace("'PUBLISH'", "'SPUBLISH'")


@cache
def _sha(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@cache
def _sources() -> dict[str, str]:
    names: tuple[ScriptName, ...] = get_args(ScriptName)
    return {_sha(script(name)): script(name) for name in names}

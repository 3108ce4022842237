"""What a command becomes in a cluster."""

from __future__ import annotations

import hashlib
from typing import get_args

import pytest

from mlxq_schemas.scripts import ScriptName, run_script, script, script_of, sharded

NAMES: tuple[ScriptName, ...] = get_args(ScriptName)


def sha1(source: object) -> str:
    return hashlib.sha1(str(source).encode()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_publishes_to_its_shard(name: ScriptName) -> None:
    command = run_script(name, ["k"], [1])
    assert command == ("EVALSHA", sha1(script(name)), 1, "k", 1)
    assert script_of(command) == script(name)
    _, source = sharded(("SCRIPT LOAD", script(name)))
    assert "'PUBLISH'" not in str(source)
    assert str(source).count("'SPUBLISH'") == script(name).count("'PUBLISH'") > 0
    assert sharded(command) == ("EVALSHA", sha1(source), 1, "k", 1)


def test_other_commands() -> None:
    assert sharded(("PUBLISH", "c", b"x")) == ("SPUBLISH", "c", b"x")
    assert sharded(("GET", "PUBLISH")) == ("GET", "PUBLISH")

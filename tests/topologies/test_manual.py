"""The manual's rights cover what the scripts do: they run with the rights of their caller."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from mlxq_schemas.scripts import ScriptName, script
from topologies.sites import MANUAL

NAMES: tuple[ScriptName, ...] = get_args(ScriptName)


@pytest.mark.parametrize("party", ["producer", "worker"])
def test_every_command_of_the_scripts_is_allowed(party: str) -> None:
    [line] = re.findall(rf"^user {party} .*$", MANUAL, re.MULTILINE)
    allowed = {word[1:].split("|")[0] for word in line.split() if word.startswith("+")}
    sources = "".join(script(name) for name in NAMES if party == "worker" or name != "dismiss")
    used = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", sources)}
    assert {"xadd", "hset", "publish"} <= used
    assert used - allowed == set(), f"add these to the line of {party} in docs/operations.md"

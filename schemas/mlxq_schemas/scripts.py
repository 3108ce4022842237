"""The Lua scripts of the Redis contract, as text: each step that must not half happen.

They live beside the key names because both sides run them: a producer submits and cancels, a
worker claims, appends, renews, finishes and hands back.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

ScriptName = Literal["submit", "cancel", "claim", "append", "finish", "hand_back", "renew"]


@cache
def script(name: ScriptName) -> str:
    """Source of one script, with the functions that all share in front."""
    folder = files("mlxq_schemas") / "lua"
    parts = (folder / f"{part}.lua" for part in ("common", name))
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)

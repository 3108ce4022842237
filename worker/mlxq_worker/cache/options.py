"""Options that the cache commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def named(text: str) -> Path:
    """The folder of that name; an unset variable in quotes would mean the current one."""
    if not text:
        raise typer.BadParameter("an empty name is no folder: name one")
    return Path(text)


Dir = Annotated[
    Path,
    typer.Option(
        "--dir", envvar="MLXQ_CACHE_DIR", help="The cache folder.", metavar="DIR", parser=named
    ),
]
Shared = Annotated[
    bool,
    typer.Option(
        "--cache-shared", envvar="MLXQ_CACHE_SHARED", help="Believe files of other users too."
    ),
]

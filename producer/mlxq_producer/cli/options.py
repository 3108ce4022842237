"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from mlxq_producer.cli.times import duration
from mlxq_producer.connection import QUEUE_VARIABLE, URL_VARIABLE

JSON_WANTED = "mlxq.json"
"""Where a context keeps whether ``--json`` was given, for whoever reports an error."""


def _remember(context: typer.Context, value: bool) -> bool:
    context.find_root().meta[JSON_WANTED] = value
    return value


RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Redis server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// "
        "(default: redis://127.0.0.1:6379/0).",
        show_default=False,
    ),
]
Queue = Annotated[
    str, typer.Option("--queue", "-q", envvar=QUEUE_VARIABLE, metavar="NAME", help="Queue name.")
]
Json = Annotated[
    bool,
    typer.Option("--json", callback=_remember, is_eager=True, help="Print JSON, for scripts."),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Job id, as printed by submit.")]
Wait = Annotated[
    float | None,
    typer.Option(
        *("--wait", "-w"),
        metavar="DURATION",
        parser=duration,
        help="Wait this long for the result: 90s, 2h ...",
    ),
]

"""``mlxq cache``: what is in a cache folder, is it whole, away with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mlxq_schemas.errors import EXIT_DEVICE_FAILED, ConfigError, DeviceFailed
from mlxq_schemas.plain import to_json
from mlxq_worker.cache import disk_care, told
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.options import Dir, Shared
from mlxq_worker.cache.warm import warm
from mlxq_worker.options import EXIT_USAGE, Command, Group, complain, warn_of_variables

EXIT_DAMAGED: Final = 1


class _Commands(Group):
    """Commands whose wrong settings, or device that fails, are one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigError, DeviceFailed) as error:
            wrong = isinstance(error, ConfigError)
            status = complain(error, EXIT_USAGE if wrong else EXIT_DEVICE_FAILED)
            raise typer.Exit(status) from error
        except TimeoutError as error:
            complain(ConfigError(f"{error.strerror}; try again"), EXIT_USAGE)
            raise typer.Exit(EXIT_USAGE) from error


app = typer.Typer(
    cls=_Commands,
    help="Look after the folder in which workers keep caches on SSD.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(cls=Command)
def stats(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Show how much is there, and how much was written in the last day."""
    found = disk_care.survey(_existing(folder, shared=shared))
    _show(found, told.stats(found), as_json=as_json)


@app.command(cls=Command)
def verify(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Read every block; damaged ones go to the quarantine. Exit status 1 if there were any.

    Workers may go on meanwhile.
    """
    report = disk_care.verify(_existing(folder, shared=shared))
    _show(report.as_dict(), told.verified(report), as_json=as_json)
    if not report.clean:
        raise typer.Exit(EXIT_DAMAGED)


@app.command(cls=Command)
def clear(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Remove every block. Workers may go on meanwhile: they compute again what they miss."""
    removed = disk_care.clear(_existing(folder, shared=shared))
    _show({"removed_blocks": removed}, [told.cleared(removed)], as_json=as_json)


app.command(cls=Command)(warm)


def main() -> None:
    """Entry point."""
    warn_of_variables()
    app(prog_name="mlxq cache")


def _existing(folder: Path, *, shared: bool) -> CacheFolder:
    found = CacheFolder(folder, shared=shared)
    found.check()
    return found


def _show(values: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print(to_json(values))
        return
    for line in lines:
        print(line)

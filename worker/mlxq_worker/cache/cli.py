"""``mlxq cache``: what is in a cache folder, is it whole, away with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from mlxq_schemas.errors import EXIT_DEVICE_FAILED, ConfigError, DeviceFailed
from mlxq_schemas.plain import to_json
from mlxq_worker.cache import disk_care
from mlxq_worker.cache.disk_folder import CacheFolder
from mlxq_worker.cache.options import Dir, Shared
from mlxq_worker.cache.warm import warm

EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2


class _Commands(TyperGroup):
    """Commands whose wrong settings, or device that fails, are one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigError, DeviceFailed) as error:
            typer.echo(f"error[{error.code}]: {error.message}", err=True)
            wrong = isinstance(error, ConfigError)
            raise typer.Exit(EXIT_USAGE if wrong else EXIT_DEVICE_FAILED) from error
        except TimeoutError as error:
            typer.echo(f"error[{ConfigError.code}]: {error.strerror}; try again", err=True)
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


@app.command()
def stats(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Show how much is there, and how much was written in the last day."""
    _show(disk_care.survey(_existing(folder, shared=shared)), as_json=as_json)


@app.command()
def verify(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Read every block; damaged ones go to the quarantine. Exit status 1 if there were any.

    Workers may go on meanwhile.
    """
    report = disk_care.verify(_existing(folder, shared=shared))
    _show(report.as_dict(), as_json=as_json)
    if not report.clean:
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def clear(folder: Dir, shared: Shared = False, as_json: Json = False) -> None:
    """Remove every block. Workers may go on meanwhile: they compute again what they miss."""
    _show({"removed_blocks": disk_care.clear(_existing(folder, shared=shared))}, as_json=as_json)


app.command()(warm)


def main() -> None:
    """Entry point."""
    app(prog_name="mlxq cache")


def _existing(folder: Path, *, shared: bool) -> CacheFolder:
    found = CacheFolder(folder, shared=shared)
    found.check()
    return found


def _show(values: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(to_json(values))
        return
    for name, value in values.items():
        print(f"{name.replace('_', ' ')}: {value}")

"""The command's parts put together."""

from __future__ import annotations

import io
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from mlxq_producer.cli.batch import batch
from mlxq_producer.cli.caption import caption
from mlxq_producer.cli.commands import App
from mlxq_producer.cli.cron import cron
from mlxq_producer.cli.dead import dead
from mlxq_producer.cli.demo import demo
from mlxq_producer.cli.failures import EXIT_CODE_HELP
from mlxq_producer.cli.jobs import cancel, follow, result
from mlxq_producer.cli.server import server
from mlxq_producer.cli.status import status
from mlxq_producer.cli.submit import submit
from mlxq_producer.cli.watch import watch
from mlxq_producer.cli.worker import PASS_THROUGH, cache, worker
from mlxq_schemas.environment import unknown_variables

app = App(
    name="mlxq",
    help="Queue-fed batch inference for multimodal language models on MLX.",
    epilog=EXIT_CODE_HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"mlxq {version('mlxq')}")
        except PackageNotFoundError:
            print("mlxq (not installed)")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Queue-fed batch inference for multimodal language models on MLX."""
    del show_version
    if context.invoked_subcommand not in {"worker", "cache"}:  # which say it themselves
        for words in unknown_variables():
            print(f"warning: {words}", file=sys.stderr)


app.command()(demo)
app.command()(caption)
app.command()(server)
app.command(context_settings=PASS_THROUGH)(worker)
app.command(context_settings=PASS_THROUGH)(cache)
app.command()(submit)
app.command()(follow)
app.command()(result)
app.command()(cancel)
app.command()(status)
app.command()(watch)
app.add_typer(dead, name="dead")
app.add_typer(cron, name="cron")
app.add_typer(batch, name="batch")


def main() -> None:
    """Entry point of ``mlxq``."""
    # A character that the terminal's encoding lacks is spelled out, and no reason to stop.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="mlxq")

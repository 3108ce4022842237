"""``mlxq cron``: commands that a clock starts, each tick once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from mlxq_producer.cli.commands import App
from mlxq_producer.cli.options import Queue, RedisUrl
from mlxq_producer.cli.times import duration
from mlxq_producer.connection import connect
from mlxq_producer.cron.lines import crontab, launchd
from mlxq_producer.cron.schedule import Schedule
from mlxq_producer.cron.ticks import CatchUp, Ticker, tick_name
from mlxq_schemas import DEFAULT_QUEUE, Keys
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.keys import check_name

cron = App(help="Run commands on a schedule, each tick once.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
Command = Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND...", help="What to run; {tick} is the tick's time."),
]
When = Annotated[
    str, typer.Option("--schedule", "-s", metavar="CRON", help="As in '0 3 * * *', or @daily.")
]
Policy = Annotated[
    CatchUp, typer.Option(case_sensitive=False, help="Which missed ticks to make up for.")
]
Late = Annotated[
    float,
    typer.Option(metavar="DURATION", parser=duration, help="How long a tick is not yet missed."),
]


@cron.command()
def tick(
    name: Name,
    command: Command,
    schedule: When,
    catch_up: Policy = CatchUp.LAST,
    late: Late = "5m",  # pyright: ignore[reportArgumentType] - typer parses it
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
) -> None:
    """Run a command if a tick is due and no other scheduler has done it; exits as it does."""
    when = Schedule.parse(schedule)
    client = connect(redis_url, queue)
    try:
        ticker = Ticker(client, Keys(queue), name)
        status = ticker.run(when, lambda at: _call(command, at), catch_up, late)
    finally:
        client.close()
    raise typer.Exit(status or 0)


@cron.command()
def lines(
    context: typer.Context,
    name: Name,
    command: Command,
    schedule: When,
    catch_up: Policy = CatchUp.LAST,
    for_launchd: Annotated[
        bool, typer.Option("--launchd", help="A property list for launchd, not a crontab.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
) -> None:
    """Print what to put into a crontab, or into a launchd agent."""
    when = Schedule.parse(schedule)
    check_name("schedule", name)
    full = [sys.executable, "-m", "mlxq_producer", "cron", "tick", name]
    full += ["--schedule", when.text, "--catch-up", catch_up.value, "--queue", queue]
    source = context.get_parameter_source("redis_url")
    if redis_url is not None and source is not None and source.name == "COMMANDLINE":
        full += ["--redis-url", redis_url]
    full += ["--", *command]
    at_boot = catch_up is not CatchUp.SKIP
    if for_launchd:
        print(launchd(name, when, full, at_boot=at_boot))
    else:
        print(crontab(when, full, at_boot=at_boot))


def _call(command: list[str], at: float) -> int:
    """Run the command of a tick; returns its exit status."""
    name = tick_name(at)
    words = [word.replace("{tick}", name) for word in command]
    # The clocks of systems set a short PATH, on which an mlxq in a virtual environment is not.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command, without a shell
            words, check=False, env={**os.environ, "PATH": path, "MLXQ_TICK": name}
        )
    except OSError as error:
        raise ConfigError(f"cannot run {words[0]}: {error.strerror or error}") from error
    return done.returncode if done.returncode >= 0 else 128 - done.returncode

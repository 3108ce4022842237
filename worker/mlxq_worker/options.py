"""How the worker's commands read options: units, names for people, one style of error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from mlxq_schemas import quantities
from mlxq_schemas.environment import unknown_variables
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.usage import is_help, option, typed, usage_words
from mlxq_schemas.wording import describe
from mlxq_worker.config import WorkerConfig
from mlxq_worker.process.redact import redact

EXIT_USAGE: Final = 2
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_OPTIONS: Final = {
    "allow_http": "--allow-http",
    "log_format": "--log-json",
    "media_roots": "--media-root",
}
_METAVARS: Final = {
    "--cache-dir": "DIR",
    "--media-root": "DIR",
    "--redis-url": "URL",
    **dict.fromkeys(("--queue", "--model", "--model-name", "--name"), "NAME"),
}


def setting(name: str, text: str, **more: Any) -> Any:
    """An option that ``MLXQ_`` and its name sets too."""
    variable = "MLXQ_" + name.removeprefix("--").split("/")[0].replace("-", "_").upper()
    names = (name, "-q") if name == "--queue" else (name,)
    more = {"envvar": variable, "metavar": _METAVARS.get(name), **more}
    return typer.Option(*names, help=text, **more)


def size(name: str, text: str, default: int, **more: Any) -> Any:
    """An option in bytes, with or without a unit."""
    shown = quantities.shown_size(default).replace(" ", "") if default else "0"
    more = {"metavar": "SIZE", "parser": _parser(quantities.size), **more}
    return setting(name, f"{text} [default: {shown}]", show_default=False, **more)


def duration(name: str, text: str, default: float, **more: Any) -> Any:
    """An option in seconds, with or without a unit."""
    shown = quantities.shown_duration(default)
    more = {"metavar": "DURATION", "parser": _parser(quantities.duration), **more}
    return setting(name, f"{text} [default: {shown}]", show_default=False, **more)


def one_of(name: str, text: str, choices: Sequence[str]) -> Any:
    """An option that is one of these words, in any case."""

    def parse(value: str) -> str:
        if value.lower() not in choices:
            *first, last = choices
            allowed = f"{', '.join(first)} or {last}"
            raise typer.BadParameter(f"{typed(value)}: must be {allowed}")
        return value.lower()

    return setting(name, text, metavar="|".join(choices), parser=parse)


def read_config(fields: dict[str, Any]) -> WorkerConfig:
    """The settings. Raises :class:`ConfigError` in the words of the options."""
    try:
        return WorkerConfig(**fields)
    except ValidationError as error:
        raise ConfigError(describe(error, fields, name=_option, show=typed)) from error


def complain(error: Any, status: int) -> int:
    """One line on stderr; returns the exit status."""
    typer.echo(f"error[{error.code}]: {redact(error.message)}", err=True)
    return status


def warn_of_variables() -> None:
    """Say which variables of the environment look like settings, and are none."""
    for words in unknown_variables():
        typer.echo(f"warning: {words}", err=True)


class Command(TyperCommand):
    """A command whose usage errors are one line, and whose help names no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments; what has no name of its own is a number."""
        found: list[Any] = list(super().get_params(ctx))
        for one in found:
            if one.param_type_name == "argument":
                one.display_type_rich = lambda **_: None
            elif one.metavar is None and not one.is_flag:
                one.metavar = "N"
        return found

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the options."""
        return refusing(lambda: super(Command, self).make_context(*args, **more))


class Group(TyperGroup):
    """The same of a group, and of the commands in it."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the group's own options."""
        return refusing(lambda: super(Group, self).make_context(*args, **more))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return refusing(lambda: super(Group, self).invoke(ctx))


def refusing(work: Callable[[], Any]) -> Any:
    """What ``work`` returns; errors of the command line are told in one line."""
    try:
        return work()
    except _UsageError as error:
        if is_help(error):
            raise
        raise typer.Exit(complain(ConfigError(usage_words(error)), EXIT_USAGE)) from error


def _option(path: str) -> str:
    field = path.partition("[")[0]
    return _OPTIONS.get(field) or option(field)


def _parser(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise typer.BadParameter(f"{typed(value)}: {error}") from error

    return parse

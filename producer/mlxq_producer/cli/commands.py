"""What all commands have in common: how they are listed, explained, and how they fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mlxq_producer.cli.failures import EXIT_PIPE, EXIT_USAGE, exit_code, report
from mlxq_producer.cli.options import JSON_WANTED
from mlxq_schemas.errors import ConfigError, MlxqError
from mlxq_schemas.usage import is_help, usage_words

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Root of the errors of reading a command line; typer does not export it."""


class Command(TyperCommand):
    """A command whose help shows a switch as a switch, and no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments, with what their values are called."""
        return [_plain(one) for one in super().get_params(ctx)]


class Commands(TyperGroup):
    """A command group in which no user's mistake shows a traceback."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As of a command."""
        return [_plain(one) for one in super().get_params(ctx)]

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the group's own options."""
        try:
            return super().make_context(*args, **more)
        except _UsageError as error:
            _refuse(error, as_json=False)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn our errors into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except MlxqError as error:
            report(error, as_json=ctx.meta.get(JSON_WANTED, False))
            raise typer.Exit(exit_code(error)) from error
        except _UsageError as error:
            _refuse(error, as_json=ctx.meta.get(JSON_WANTED, False))
        except BrokenPipeError as error:
            # Python flushes stdout once more at exit; it must find somewhere to write to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE) from error


class App(typer.Typer):
    """A group of such commands."""

    def __init__(self, **more: Any) -> None:
        super().__init__(cls=Commands, no_args_is_help=True, **more)

    def command(self, *args: Any, **more: Any) -> Callable[[Any], Any]:
        """Register a command."""
        return super().command(*args, cls=Command, **more)


def _refuse(error: Any, *, as_json: bool) -> None:
    if is_help(error):
        raise error
    report(ConfigError(usage_words(error)), as_json=as_json)
    raise typer.Exit(EXIT_USAGE) from error


def _plain(parameter: Any) -> Any:
    """A switch has no value, an argument is called by its name alone, and choices are listed."""
    choices = getattr(getattr(parameter, "type_descriptor", None), "choices", None)
    if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
        parameter.display_type_rich = lambda **_: None
    elif choices and parameter.metavar is None:
        parameter.metavar = "|".join(str(getattr(one, "value", one)) for one in choices)
    return parameter

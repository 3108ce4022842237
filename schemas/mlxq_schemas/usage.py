"""What was wrong with a command line, in one line and in the words of all other errors.

It knows the library that reads command lines by the shape of its errors alone, so that the parts
that travel need none.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import ValidationError

from mlxq_schemas.near import did_you_mean
from mlxq_schemas.plain import whole
from mlxq_schemas.wording import describe

_COMMAND: Final = re.compile(r"No such command '(.+?)'")
_EXTRA: Final = re.compile(r"unexpected extra argument\S* \((.*)\)", re.DOTALL)
_CHOICE: Final = re.compile(r"is not one of (.+?)\.?\Z", re.DOTALL)
_NEEDS_VALUE: Final = re.compile(r"Option '(.+?)' requires (?:an argument|\d+ arguments)")
_NO_VALUE: Final = re.compile(r"Option '(.+?)' does not take a value")


def is_help(error: Exception) -> bool:
    """True for the "error" that shows a group's help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_words(error: Any) -> str:
    """The message for an error that reading a command line ended in: the option or argument by the
    name that was typed, its value, what is allowed.
    """
    context = error.ctx
    command = "mlxq" if context is None else context.command_path
    see = f'; "{command} --help" shows what there is'
    text: str = error.format_message()
    if (option := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        return whole(f"{option} is unknown{did_you_mean(option, _options(context)) or see}")
    if found := _COMMAND.search(text):
        return whole(f"no command {found[1]}{did_you_mean(found[1], _commands(context)) or see}")
    if found := _EXTRA.search(text):
        return whole(f"unexpected: {found[1]}{see}")
    if found := _NEEDS_VALUE.search(text):
        return f"{found[1]} needs a value"
    if found := _NO_VALUE.search(text):
        return f"{found[1]} takes no value"
    if (parameter := getattr(error, "param", None)) is None:
        return whole(text.rstrip("."))
    if type(error).__name__ == "MissingParameter":
        return f"{_name(parameter)} is missing{see}"
    cause = error.__cause__
    subject = _subject(parameter, context)
    if isinstance(cause, ValidationError):
        [first, *_] = cause.errors(include_url=False)
        return whole(f"{subject} {typed(first['input'])}: {_allowed(cause)}")
    return whole(f"{subject} {error.message.rstrip('.')}")


def _allowed(error: ValidationError) -> str:
    """What is allowed, of the first thing that is wrong."""
    [first, *_] = error.errors(include_url=False)
    if first["type"] == "value_error":
        text = str(first.get("ctx", {}).get("error", ""))
    else:
        text = describe(error, first["input"]).split("; ")[0].rpartition(": ")[2]
    if found := _CHOICE.search(text):
        return f"must be {' or '.join(found[1].replace(chr(39), '').rsplit(', ', 1))}"
    return text


def option(field: str) -> str:
    """The option that sets a field."""
    return "--" + field.replace("_", "-")


def typed(value: object) -> str:
    """A value as it stood on the command line."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= 60 else text[:59] + "…"
    return text if text and not re.search(r"\s", text) else repr(text)


def _subject(parameter: Any, context: Any) -> str:
    """The variable, where the value came from one; else the option or argument."""
    source = context.get_parameter_source(parameter.name) if context is not None else None
    if source is not None and source.name == "ENVIRONMENT" and parameter.envvar:
        found = parameter.envvar
        return found if isinstance(found, str) else found[0]
    return _name(parameter)


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return (parameter.metavar or parameter.name.upper()).removesuffix("...")
    return max(parameter.opts, key=len)


def _options(context: Any) -> list[str]:
    if context is None:
        return []
    parameters = context.command.get_params(context)
    return [name for one in parameters for name in (*one.opts, *one.secondary_opts)]


def _commands(context: Any) -> list[str]:
    return list(getattr(context.command, "commands", ())) if context is not None else []

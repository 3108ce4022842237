"""Prompts with the fields of an item's row in them."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mlxq_schemas.errors import ConfigError, InvalidJob
from mlxq_schemas.near import did_you_mean

_FORMATTER: Final = string.Formatter()


class Template:
    """A prompt with ``{field}`` in it; ``{{`` and ``}}`` stand for braces.

    Names only: ``{a.b}`` and ``{a[0]}`` would reach into objects, and are refused. Raises
    :class:`ConfigError` for a template that cannot be read.
    """

    def __init__(self, text: str) -> None:
        try:
            self._parts = list(_FORMATTER.parse(text))
        except ValueError as error:
            raise ConfigError(
                f"the template cannot be read ({error}): write {{field}}, and {{{{ for a brace"
            ) from error
        for _, name, spec, conversion in self._parts:
            if name is not None and (not name.isidentifier() or spec or conversion):
                raise ConfigError(
                    f"the template names {{{name}}}: give the plain name of a field, as in {{tags}}"
                )

    def render(self, values: Mapping[str, Any]) -> str:
        """The prompt for one item. Raises :class:`InvalidJob` for a field that it lacks."""
        return "".join(text + self._value(name, values) for text, name, _, _ in self._parts)

    def _value(self, name: str | None, values: Mapping[str, Any]) -> str:
        if name is None:
            return ""
        if name not in values:
            raise InvalidJob(
                f"the template names {{{name}}}, which this item lacks"
                f"{did_you_mean(name, values)}; it has {', '.join(sorted(values))}"
            )
        value = values[name]
        if isinstance(value, list | tuple):
            return ", ".join(map(_text, cast("Sequence[object]", value)))
        return _text(value)


def _text(value: object) -> str:
    """Nothing for null, and for numbers that are none: JSON has null in their place."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value)


class Literal:
    """A prompt that is the same for all items, whatever braces it holds."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, values: Mapping[str, Any]) -> str:
        """The text."""
        del values
        return self._text

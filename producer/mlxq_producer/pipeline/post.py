"""What is done with a text before it is written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from mlxq_producer.errors import PostFailed
from mlxq_producer.pipeline.extras import need
from mlxq_producer.pipeline.item import Outcome
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import unwritable


@dataclass(frozen=True)
class Post:
    """Steps in this order: ``strip`` blanks, keep what ``regex`` finds (its first group, if it
    has one), cut to ``max_length`` characters at a word's end, add ``prefix`` and ``suffix``.

    ``schema`` is a JSON schema that the text must meet before these; it is checked by
    :meth:`check`, since a text that does not may be asked for again.
    """

    strip: bool = True
    regex: str | None = None
    max_length: int | None = None
    prefix: str = ""
    suffix: str = ""
    schema: Mapping[str, Any] | None = None

    def prepare(self) -> None:
        """Raise :class:`ConfigError` for a pattern or schema that is none."""
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ConfigError(f"the pattern {self.regex!r} cannot be read: {error}") from error
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"a max length of {self.max_length} leaves nothing: give 1 or more")
        if self.schema is not None:
            jsonschema = need("jsonschema", "a check by JSON schema")
            try:
                jsonschema.validators.validator_for(self.schema).check_schema(self.schema)
            except jsonschema.SchemaError as error:
                raise ConfigError(f"the JSON schema is none: {error.message}") from error

    def digest(self) -> str:
        """Changes when the same text would come out differently."""
        steps = [self.strip, self.regex, self.max_length, self.prefix, self.suffix]
        return hashlib.sha256(json.dumps(steps).encode()).hexdigest()[:16]

    def check(self, text: str) -> str | None:
        """Why the text does not meet the schema; None if it does."""
        if self.schema is None:
            return None
        jsonschema = need("jsonschema", "a check by JSON schema")
        try:
            value = json.loads(unfenced(text), parse_constant=_no_number)
            for problem in unwritable(value, "the value"):
                return f"the text is JSON that strict readers refuse: {problem}: {text[:80]!r}"
            jsonschema.validate(value, self.schema)
        except (ValueError, RecursionError) as error:
            return f"the text is not JSON ({error}): {text[:80]!r}"
        except jsonschema.ValidationError as error:
            return f"the text does not meet the schema at {error.json_path}: {error.message}"
        return None

    def apply(self, outcome: Outcome) -> Outcome:
        """The outcome with its text treated; a failed one if nothing is left that was asked for."""
        if not outcome.ok:
            return outcome
        text = unfenced(outcome.text) if self.schema is not None else outcome.text
        if self.strip:
            text = text.strip()
        if self.regex is not None:
            found = re.search(self.regex, text, re.DOTALL)
            if found is None:
                message = f"nothing in the text matches {self.regex!r}: {text[:80]!r}"
                return replace(outcome, text="", code=PostFailed.code, message=message)
            text = found.group(1 if found.re.groups else 0) or ""
        return replace(outcome, text=f"{self.prefix}{_cut(text, self.max_length)}{self.suffix}")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def unfenced(text: str) -> str:
    """JSON without the fence of a code block that models like to put around it."""
    found = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", text, re.DOTALL)
    return found.group(1) if found else text


def _cut(text: str, length: int | None) -> str:
    if length is None or len(text) <= length:
        return text
    head = text[:length]
    if not text[length].isspace() and any(c.isspace() for c in head):
        head = head.rsplit(None, 1)[0]
    return head.rstrip()

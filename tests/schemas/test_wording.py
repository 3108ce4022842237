"""What pydantic finds wrong is said in our words, for every model that a user can get wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import core_schema

from mlxq_producer.batch.record import Batch
from mlxq_schemas import Job, Result, wire
from mlxq_schemas.errors import InvalidJob, JobError, Unsupported
from mlxq_schemas.events import event_adapter
from mlxq_schemas.wording import SAID_OTHERWISE, WORDS, describe
from mlxq_worker.config import WorkerConfig

MODELS = (Job, Result, Batch, WorkerConfig)

# The kinds of nodes in pydantic's schemas of these models, and the errors that each may raise.
ERRORS: dict[str, set[str]] = {
    "any": set(),
    "bool": {"bool_type", "bool_parsing"},
    "default": set(),
    "definition-ref": set(),
    "definitions": set(),
    "dict": {"dict_type", "too_long", "too_short", "invalid_key"},
    "enum": {"enum"},
    "float": {
        *("float_type", "float_parsing", "finite_number"),
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    },
    "function-after": {"value_error", "assertion_error"},
    "function-before": {"value_error", "assertion_error"},
    "function-wrap": {"value_error", "assertion_error"},
    "int": {
        *("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    },
    "is-instance": {"is_instance_of"},
    "json-or-python": set(),
    "lax-or-strict": set(),
    "list": {"list_type", "too_long", "too_short"},
    "literal": {"literal_error"},
    "model": {"model_type", "model_attributes_type"},
    "model-field": {"missing"},
    "model-fields": {"model_type", "model_attributes_type", "extra_forbidden", "invalid_key"},
    "no-info": set(),
    "nullable": set(),
    "str": {
        *("string_type", "string_unicode"),
        *("string_too_short", "string_too_long"),
    },
    "tagged-union": {"union_tag_invalid", "union_tag_not_found", "model_attributes_type"},
    "tuple": {"tuple_type", "too_long", "too_short"},
    "union": set(),
}
NASTY: list[Any] = [
    *(None, "", "x", "\ud83d", "x" * 5000, b"\xff", 5, -1, 2**80, 1.5, math.nan, math.inf, True),
    *([], [1], ["\ud83d"], {}, {1: 2}, {"type": "x"}, {"type": "text"}, {"url": 5}, {"abc": 1}),
    *([{}], [{"role": "user"}], [{"role": "x", "content": 5}], object()),
    [{"role": "user", "content": [{"type": "x"}, {}, 5, {"type": "text", "text": 5}]}],
    {"stop": 5, "seed": -1, "logit_bias": {"x": 1, "5": 1e9}, "top_p": 0, "max_tokens": "5"},
]
PYDANTIC = re.compile(
    r"Input should|Value error|Extra inputs|validation error|Field required"
    r"|valid (?:integer|string)|list\[|tagged-union|discriminator|is not valid"
)


def nodes(schema: Any) -> Iterator[str]:
    """The kinds of all nodes of a core schema."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str) and kind in ERRORS.keys() | {kind}:
            yield kind
        for name, one in schema.items():
            if name not in {"metadata", "serialization", "ref", "default", "expected", "config"}:
                yield from nodes(one)
    elif isinstance(schema, list | tuple):
        for one in schema:
            yield from nodes(one)


@pytest.mark.parametrize("model", [*MODELS, event_adapter], ids=str)
def test_every_kind_of_error_has_words(model: Any) -> None:
    schema = model.core_schema if isinstance(model, TypeAdapter) else model.__pydantic_core_schema__
    kinds = set(nodes(schema))
    assert kinds <= ERRORS.keys(), "say which errors these kinds raise, and put them into words"
    raised = set[str]().union(*(ERRORS[kind] for kind in kinds))
    assert raised <= WORDS.keys() | SAID_OTHERWISE


@pytest.mark.parametrize("model", MODELS)
def test_no_word_of_pydantics(model: type[BaseModel]) -> None:
    for name in [*model.model_fields, "colour"]:
        for value in NASTY:
            given = {name: value}
            try:
                model.model_validate(given)
            except InvalidJob as error:
                said = error.message
            except ValidationError as error:
                said = describe(error, given)
            else:
                continue
            assert not PYDANTIC.search(said), said
            assert len(said) < 1500
            said.encode()


def test_types_in_the_tables_are_those_that_pydantic_has() -> None:
    known = WORDS.keys() | SAID_OTHERWISE
    assert known - {"path_type"} <= set(get_args(core_schema.ErrorType))


USER = {"role": "user"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sampling": {"temperature": 11}}, "sampling.temperature 11: must be at most 10"),
        ({"prompt": {"password": "hunter2"}}, "prompt (a map): must be a text"),
        ({"priority": "soon"}, 'priority "soon": must be high, normal or low'),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [{**USER, "content": 5}]},
         "messages[0].content 5: must be a text or a list"),
        ({"messages": [{**USER, "content": [{"type": "picture"}]}]},
         'messages[0].content[0]: unknown part type "picture": text, image_url'),
        ({"messages": [{**USER, "content": [{"type": "text"}]}]},
         "messages[0].content[0].text is missing"),
        ({"messages": [{**USER, "content": [{"text": "x"}]}]},
         "messages[0].content[0].type is missing"),
        ({"messages": [{**USER, "content": [{"type": "text", "text": 5}]}]},
         "messages[0].content[0].text 5: must be a text"),
        ({"messages": [{**USER, "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].image_url.url is missing"),
        ({"images": [""]}, 'images[0] "": must not be empty'),
        ({"sampling": {"logit_bias": {"7": True}}},
         "sampling.logit_bias.7 true: must be a number"),
        ({"id": "a b"}, "job id 'a b' is not a name"),
    ],
)  # fmt: skip
def test_path_value_and_what_is_allowed(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        wire.parse_job(fields)
    assert said in caught.value.message


def test_what_may_be_secret_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        WorkerConfig(redis_url=7)  # pyright: ignore[reportArgumentType]
    assert describe(caught.value, {"redis_url": 7}) == "redis_url: must be a text"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temprature": 1}, "temprature is unknown: did you mean sampling.temperature?"),
        ({"temperature": 1}, "temperature is unknown: did you mean sampling.temperature?"),
        ({"sampling": {"Top_P": 1}}, "sampling.Top_P is unknown: did you mean sampling.top_p?"),
        ({"max-attempts": 1}, "max-attempts is unknown: did you mean max_attempts?"),
        ({"messages": [{**USER, "contnet": "x"}]},
         "messages[0].contnet is unknown: did you mean messages[0].content?"),
        ({"colour": 1, "promt": "x"}, "promt is unknown: did you mean prompt?"),
        ({"colour": 1, "promt": "x"}, "not supported by this version: colour; leave these out"),
    ],
)  # fmt: skip
def test_a_slip_of_the_hand_is_met_with_the_name_that_was_meant(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises((Unsupported, JobError)) as caught:
        wire.parse_job(fields).check()
    assert caught.value.code == "unsupported"
    assert said in caught.value.message

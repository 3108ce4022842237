"""Options that become fields of jobs: what is wrong with them is told in the options' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mlxq_schemas import Job, Sampling
from mlxq_schemas.errors import ConfigError, InvalidJob
from mlxq_schemas.usage import option, typed
from mlxq_schemas.wording import describe


def check_options(given: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for what no job may have; None stands for what was left out."""
    fields = {name: value for name, value in given.items() if value is not None}
    sampling = {name: fields.pop(name) for name in Sampling.model_fields if name in fields}
    for model, values in ((Job, fields), (Sampling, sampling)):
        try:
            model.model_validate(values)
        except ValidationError as error:
            raise ConfigError(describe(error, values, name=_option, show=typed)) from error
        except InvalidJob as error:
            raise ConfigError(f"--id: {error.message}") from error


def _option(path: str) -> str:
    return option(path.partition("[")[0])

"""Libraries that only some pipelines need."""

from __future__ import annotations

import importlib
from typing import Any

from mlxq_schemas.errors import ConfigError


def need(module: str, purpose: str) -> Any:
    """The module. Raises :class:`ConfigError` that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".", maxsplit=1)[0]
        raise ConfigError(
            f'{purpose} needs {name}, which is not installed: pip install "mlxq[pipelines]"'
        ) from error

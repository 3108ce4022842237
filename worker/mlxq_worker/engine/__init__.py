"""The continuous batch generator. It knows no Redis.

``BatchGenerator`` is imported at its first use: whoever only passes requests and responses on
needs no MLX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxq_worker.engine.request import LogitsProcessor, Prepared, Request, Response, Times

if TYPE_CHECKING:
    from mlxq_worker.engine.generator import BatchGenerator


def __getattr__(name: str) -> Any:
    if name == "BatchGenerator":
        from mlxq_worker.engine.generator import BatchGenerator  # noqa: PLC0415

        return BatchGenerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["BatchGenerator", "LogitsProcessor", "Prepared", "Request", "Response", "Times"]

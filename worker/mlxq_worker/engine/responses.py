"""What a row's outcomes are called outside of the engine."""

from __future__ import annotations

from typing import Literal

from mlxq_schemas import FinishReason
from mlxq_schemas.errors import GenerationFailed, MlxqError
from mlxq_worker.engine.batch import Step
from mlxq_worker.engine.request import Response
from mlxq_worker.engine.row import Row


def response(step: Step) -> Response:
    """The outcome of one step."""
    row = step.row
    if step.error is not None:
        return failed(row, step.error)
    found = Response(row.uid, row.request_id, step.token, step.text, step.logprobs)
    if row.finish_reason is not None:
        found.finish_reason = row.finish_reason
        found.usage, found.times = row.usage(), row.times()
    return found


def ended(row: Row, reason: FinishReason | Literal["cancelled", "error"]) -> Response:
    """The last response of a row that gives nothing more."""
    return Response(
        row.uid, row.request_id, finish_reason=reason, usage=row.usage(), times=row.times()
    )


def failed(row: Row, error: Exception) -> Response:
    """The last response of a row that met an error."""
    if not isinstance(error, MlxqError):
        error = GenerationFailed(f"the model raised {type(error).__name__}: {error}")
    last = ended(row, "error")
    last.error = error
    return last

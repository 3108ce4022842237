"""What is asked of a request before anything of it is computed."""

from __future__ import annotations

from typing import Any

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.engine.request import Request
from mlxq_worker.models.inputs import build_inputs, check_ids
from mlxq_worker.models.prepared import Prepared


def check_known_ids(request: Request, vocabulary: int) -> None:
    """Raise :class:`InvalidJob` for ids of a request that the model has no embedding for."""
    name = request.request_id
    prompt = request.prepared.ids if request.prepared is not None else request.prompt_ids
    check_ids(f"{name}: the prompt", prompt if prompt is not None else (), vocabulary)
    check_ids(f"{name}: what was generated before", request.prior_ids, vocabulary)
    check_ids(f"{name}: logit_bias", request.sampling.logit_bias, vocabulary)


def prepare(request: Request, processor: Any, vocabulary: int) -> Prepared:
    """The prompt of a request that did not bring it prepared; raises :class:`InvalidJob`."""
    if request.prompt_ids is not None:
        prepared = Prepared(list(request.prompt_ids))
    elif request.prompt is not None:
        prepared = build_inputs(processor, request.prompt, request.images)
        check_ids(f"{request.request_id}: the prompt", prepared.ids, vocabulary)
    else:
        raise InvalidJob(f"{request.request_id}: give prompt, prompt_ids or prepared")
    if not prepared.ids:
        raise InvalidJob(f"{request.request_id}: the prompt has no tokens")
    return prepared

"""How tokens are chosen."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from mlxq_schemas.media import Model
from mlxq_schemas.numbers import Bool, Float, Int


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _each_token_once(value: Any, validate: ValidatorFunctionWrapHandler) -> dict[int, float]:
    found = cast("dict[int, float]", validate(value))
    if len(found) != len(value):
        raise ValueError("names a token twice")
    return found


_Bias = Annotated[Float, Field(ge=-100.0, le=100.0)]


class Sampling(Model):
    """Sampling parameters of one job; the defaults are greedy.

    ``temperature`` 0 takes the most likely token. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are
    off. ``seed``: same job and seed, same tokens, whatever runs beside it; a worker takes one from
    the job's id if there is none. Penalties look at
    the tokens generated so far (``repetition_penalty`` at the prompt too). ``logit_bias`` maps
    token ids to what is added to their logits.
    """

    max_tokens: Int = Field(default=256, ge=0, le=1_000_000)
    temperature: Float = Field(default=0.0, ge=0.0, le=10.0, allow_inf_nan=False)
    top_p: Float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: Int = Field(default=0, ge=0)
    min_p: Float = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: Float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: Float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: Float = Field(default=1.0, gt=0.0, le=10.0)
    seed: Int | None = Field(default=None, ge=0, lt=2**63)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list)] = Field(
        default_factory=list, max_length=16
    )
    logit_bias: Annotated[
        dict[Annotated[int, Field(ge=0)], _Bias], WrapValidator(_each_token_once)
    ] = Field(default_factory=dict)
    ignore_eos: Bool = False

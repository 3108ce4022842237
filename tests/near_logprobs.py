"""Log probabilities of two runs compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlxq_schemas import TokenLogprob


def near(
    some: Sequence[TokenLogprob], others: Sequence[TokenLogprob], tolerance: float = 1e-4
) -> bool:
    """True if log probabilities are the same to ``tolerance``; near ties may be in any order."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        values = ([p.logprob, *p.top.values()] for p in (one, other))
        if one.id != other.id or len(one.top) != len(other.top):
            return False
        if not np.allclose(*values, rtol=0, atol=tolerance):
            return False
    return True

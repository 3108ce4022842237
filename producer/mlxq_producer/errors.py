"""Errors that only a producer meets; the tree they hang on is in :mod:`mlxq_schemas.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlxq_schemas.errors import MlxqError


class SubmitErrors(MlxqError):
    """Some jobs of one ``submit_many`` were refused; all others were accepted.

    ``ids`` holds the job id of each job in the order given, None where it was refused;
    ``errors`` says why, by the same position.
    """

    code = "submit_errors"

    def __init__(self, ids: Sequence[str | None], errors: Mapping[int, MlxqError]) -> None:
        first = min(errors)
        super().__init__(
            f"{len(errors)} of {len(ids)} jobs were refused; the first is number {first + 1}: "
            f"{errors[first].message}; correct these and submit them again"
        )
        self.ids = list(ids)
        self.errors = dict(errors)

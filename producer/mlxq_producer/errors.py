"""Errors that only a producer meets; the tree they hang on is in :mod:`mlxq_schemas.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlxq_schemas.errors import ConfigError, MlxqError


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


class RetryErrors(MlxqError):
    """Some dead jobs could not be sent again; ``sent`` holds the ids of the others.

    ``errors`` says why, by job id.
    """

    code = "retry_errors"

    def __init__(self, sent: Sequence[str], errors: Mapping[str, MlxqError]) -> None:
        first = next(iter(errors.values()))
        super().__init__(
            f"{len(errors)} of {len(sent) + len(errors)} dead jobs cannot be sent again: "
            f"{first.message}"
        )
        self.sent = list(sent)
        self.errors = dict(errors)


class NothingFound(ConfigError):
    """The sources have nothing to caption; what was passed over is in the message."""

    code = "nothing_found"


class NoImageColumn(ConfigError):
    """A table has no column with pictures, or several that might be meant."""

    code = "no_image_column"


class BatchFailing(MlxqError):
    """The first lines of a batch all failed for one reason, and the run ended; its jobs did too."""

    code = "batch_failing"


class OutputInUse(ConfigError):
    """Another run holds the lock of an output."""

    code = "output_in_use"


class OutputEdited(ConfigError):
    """A file of rows holds what no run wrote, and would be lost."""

    code = "output_edited"


class OutputFailed(MlxqError):
    """A row could not be written."""

    code = "output_failed"


class PostFailed(MlxqError):
    """A text did not pass what was asked of it: a pattern, or a JSON schema."""

    code = "post_failed"


class WorkerFailed(MlxqError):
    """A worker that was started for a run ended before the run did."""

    code = "worker_failed"

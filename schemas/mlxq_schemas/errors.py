"""The error tree: every error that a user can meet has a stable ``code``.

::

    MlxqError
    ├── JobError                     the job itself cannot be done; it is dead-lettered
    │   ├── BadMessage               bad_message          broken msgpack or JSON, or no hash
    │   ├── UnknownVersion           unknown_version      ``v`` is newer than ours
    │   ├── TooLarge                 too_large            the payload is over the limit
    │   ├── InvalidJob               invalid_job          a field is missing or out of range
    │   │   └── EmptyPrompt          empty_prompt         nothing to answer
    │   ├── Unsupported              unsupported          a field that this version lacks
    │   ├── UnknownModel             unknown_model        the worker serves another model
    │   ├── PromptTooLong            prompt_too_long      more tokens than the model's context
    │   ├── TemplateFailed           template_failed      the chat template refused the messages
    │   ├── MediaError               media_invalid        the bytes are not what they claim to be
    │   │   ├── MediaNotFound        media_not_found      no such file, URL or blob
    │   │   ├── MediaForbidden       media_forbidden      outside the allowed roots or hosts
    │   │   ├── MediaTooLarge        media_too_large      too many bytes or pixels
    │   │   ├── MediaTooSmall        media_too_small      fewer pixels than a model can see
    │   │   └── MediaFetchFailed     media_fetch_failed   the download broke off
    │   ├── GenerationFailed         generation_failed    the model raised or gave NaN for this row
    │   ├── EngineFailed         engine_failed        the engine broke with the job in it
    │   ├── JobTimeout           timeout              its run time was longer than it allows
    │   └── Poison                   poison               it took several workers down with it
    ├── QueueError                   the queue refused or could not be reached
    │   ├── QueueUnavailable         queue_unavailable    no server, or the connection broke
    │   ├── QueueFull                queue_full           ``max_depth`` reached
    │   ├── RedisFull                redis_full           the server is at ``maxmemory``
    │   ├── Conflict                 conflict             this id holds another job
    │   ├── UnknownJob               unknown_job          no job of this id
    │   └── EvictionPolicy           eviction_policy      the server may evict jobs
    ├── DeviceFailed                 device_failed        the GPU of a worker failed again and again
    ├── WaitTimeout                  wait_timeout         no result within the time given
    ├── Expired                      expired              events of a job are gone (TTL)
    └── ConfigError                  config               a setting is wrong
        └── ModelNotLoaded           model_not_loaded     a model folder or hub id cannot be loaded
            └── RemoteCodeNeeded     remote_code_needed   it needs Python of its own

An error whose ``transient`` is true may pass: a job that met it is tried again.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mlxq_schemas.plain import whole

EXIT_DEVICE_FAILED: Final = 6
"""Exit status of a worker whose device failed again and again (:class:`DeviceFailed`)."""


class MlxqError(Exception):
    """Root of all mlxq errors. ``str(error)`` names the input and the remedy."""

    code: ClassVar[str] = "internal"
    transient: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        # It may name a file or a field whose name cannot be written as it is.
        message = whole(message)
        super().__init__(message)
        self.message = message


class JobError(MlxqError):
    """The job cannot be done; unless ``transient``, another attempt would fail the same way."""

    code = "invalid_job"


class BadMessage(JobError):
    code = "bad_message"


class UnknownVersion(JobError):
    code = "unknown_version"


class TooLarge(JobError):
    code = "too_large"


class InvalidJob(JobError):
    code = "invalid_job"


class EmptyPrompt(InvalidJob):
    code = "empty_prompt"


class Unsupported(JobError):
    code = "unsupported"


class UnknownModel(JobError):
    code = "unknown_model"


class PromptTooLong(JobError):
    code = "prompt_too_long"


class TemplateFailed(JobError):
    code = "template_failed"


class MediaError(JobError):
    code = "media_invalid"


class MediaNotFound(MediaError):
    code = "media_not_found"


class MediaForbidden(MediaError):
    code = "media_forbidden"


class MediaTooLarge(MediaError):
    code = "media_too_large"


class MediaTooSmall(MediaError):
    code = "media_too_small"


class MediaFetchFailed(MediaError):
    code = "media_fetch_failed"
    transient = True


class GenerationFailed(JobError):
    code = "generation_failed"


class EngineFailed(JobError):
    code = "engine_failed"
    transient = True


class JobTimeout(JobError):
    code = "timeout"


class Poison(JobError):
    code = "poison"


class QueueError(MlxqError):
    code = "queue_error"


class QueueUnavailable(QueueError):
    code = "queue_unavailable"
    transient = True


class QueueFull(QueueError):
    code = "queue_full"


class RedisFull(QueueError):
    code = "redis_full"


class Conflict(QueueError):
    code = "conflict"


class UnknownJob(QueueError):
    code = "unknown_job"


class EvictionPolicy(QueueError):
    code = "eviction_policy"


class DeviceFailed(MlxqError):
    code = "device_failed"
    transient = True


class WaitTimeout(MlxqError, TimeoutError):
    code = "wait_timeout"


class Expired(MlxqError):
    code = "expired"


class ConfigError(MlxqError):
    code = "config"


class ModelNotLoaded(ConfigError):
    code = "model_not_loaded"


class RemoteCodeNeeded(ModelNotLoaded):
    code = "remote_code_needed"

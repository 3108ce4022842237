"""Errors of the device, which say nothing of the row in whose call they surface.

MLX computes behind Python's back. What fails there is raised, once, in whatever uses the stream
next; other arrays of the same command buffer pass as good. So such an error is nobody's: rows
start again, and nothing is believed that was queued since the last good read. No MLX here.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from mlxq_schemas.errors import DeviceFailed, ModelNotLoaded

MAX_FAULTS: Final = 3
"""Device errors in a row, with no good read between, that are survived."""


class Fault(Enum):
    """Kinds of device errors: smaller work may help against the first."""

    MEMORY = "out of memory"
    OTHER = "failed"


_METAL: Final = r"\[METAL\]\s+Command buffer execution failed"
_CUDA: Final = (
    r"\b(?:cu(?:da|blas|blasLt|dnn|solver|fft)?[A-Z]\w*|CUDA)\b.*?\bfailed(?: with code)?:"
)

_MEMORY: Final = re.compile(
    r"^\s*\[(?:metal::)?malloc(?:_or_wait)?\]"
    rf"|{_METAL}.*(?:Insufficient Memory|OutOfMemory)"
    rf"|^\s*{_CUDA}.*(?:out of memory|memory allocation|ALLOC_FAILED)"
    r"|^\s*cublas.*failed with code: 3\b"
    r"|\bCUDA error\b.*out of memory"
    r"|^\s*std::bad_alloc",
    re.DOTALL,
)
_OTHER: Final = re.compile(rf"{_METAL}|^\s*{_CUDA}|\bCUDA error\b", re.DOTALL)
_OWN: Final = re.compile(
    r"invalid (?:argument|value|device function|configuration|pitch|texture)|no kernel image"
    r"|too many resources|not supported|NOT_SUPPORTED|INVALID_VALUE"
    r"|^\s*cublas.*failed with code: (?:7|15)\b",
    re.DOTALL,
)
"""What CUDA refuses at once, by the call's own arguments: the device is well."""


def device_fault(error: BaseException) -> Fault | None:
    """The kind of device error that ``error`` is or was raised from; None: it is none.

    By what MLX raises: :class:`MemoryError`, or :class:`RuntimeError` with the words of Metal, of
    CUDA or of an allocator. An interrupt stays one, whatever it interrupted.
    """
    if not isinstance(error, Exception):
        return None
    kinds = {_kind(one) for one in _chain(error)}
    return next((kind for kind in Fault if kind in kinds), None)


def blame(error: Exception) -> None:
    """Raise a device error again: nobody's row is to be blamed for it. Nothing for others."""
    if device_fault(error) is not None:
        raise error


@contextmanager
def loading(name: str) -> Generator[None]:
    """What the device does while the model ``name`` is loaded, as an error that says so.

    Raises :class:`ModelNotLoaded` where memory is too small, else :class:`DeviceFailed`.
    """
    try:
        yield
    except Exception as error:
        match device_fault(error):
            case None:
                raise
            case Fault.MEMORY:
                raise ModelNotLoaded(
                    f"{name} does not fit into memory ({error}): end what else uses it, or take "
                    "a smaller or quantised model"
                ) from error
            case Fault.OTHER:
                raise DeviceFailed(
                    f"the device failed while {name} was loaded ({error}): start the worker again"
                ) from error


def _kind(error: BaseException) -> Fault | None:
    if isinstance(error, MemoryError):
        return Fault.MEMORY
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    if _MEMORY.search(text):
        return Fault.MEMORY
    return Fault.OTHER if _OTHER.search(text) and not _OWN.search(text) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, those that it was raised from, and those of a group; each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            group: BaseExceptionGroup[BaseException] = one
            waiting += group.exceptions

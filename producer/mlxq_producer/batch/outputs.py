"""Output and error file of a run, and the batch object beside them: from these a run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, Final, Self

from pydantic import ValidationError

from mlxq_producer.batch.lines import BadLine
from mlxq_producer.batch.record import Batch
from mlxq_producer.batch.rows import Row, error_row, row_id
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import to_json, whole

_OPEN, _ANSWERED, _REFUSED = b"\0", b"\1", b"\2"
"""Marks of lines, by the file that has their rows."""
_ROW: Final = re.compile(rb'\{"id": "(batch_req_[0-9a-f]+_)(\d+)"')


def encode_row(row: Row) -> bytes:
    """One line of strict JSON."""
    return to_json(row).encode() + b"\n"


class Outputs:
    """Opens the files of a new or unfinished run and appends rows; ``with`` closes them.

    ``fresh`` is the batch if this run is a new one. One run at a time: the output file is locked.
    Raises :class:`ConfigError` where another run has it, and where its rows are of another batch.
    """

    def __init__(self, source: Path, output: Path, errors: Path, fresh: Batch) -> None:
        names = {path.absolute() for path in (source, output, errors)}
        if len(names) != 3:
            raise ConfigError(f"input {source}, output and errors must be three files")
        self._state = output.with_name(f"{output.name}.batch")
        self._stack = contextlib.ExitStack()
        self._done = bytearray()
        self.tell: Callable[[Row], object] = lambda _row: None
        """Hears of each row as it is written."""
        with contextlib.ExitStack() as stack:
            self._output = stack.enter_context(_open(output))
            _lock(self._output, output)
            self._errors = stack.enter_context(_open(errors))
            self.batch = self._known() or fresh
            self.batch.output_file_id, self.batch.error_file_id = (
                whole(str(output)),
                whole(str(errors)),
            )
            counts = self.batch.request_counts
            counts.completed = self._recover(self._output, output, _ANSWERED)
            counts.failed = self._recover(self._errors, errors, _REFUSED)
            self.save()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.save()

    @property
    def missing(self) -> int:
        """Lines that have no row, as far as the batch object knows how many there are."""
        return max(self.batch.request_counts.total - len(self._done) + self._done.count(_OPEN), 0)

    def is_done(self, number: int) -> bool:
        """True if the line has its row."""
        return number < len(self._done) and bool(self._done[number])

    def respond(self, row: Row) -> None:
        """Append the row of a finished job."""
        self._output.write(encode_row(row))
        self.batch.request_counts.completed += 1
        self.tell(row)

    def refuse(self, line: BadLine) -> None:
        """Append the row of a line that has no response."""
        row = error_row(self.batch.id, line)
        self._errors.write(encode_row(row))
        self.batch.request_counts.failed += 1
        self.tell(row)

    def forget_failures(self) -> None:
        """Take the error rows away: their lines have none, and are to be done again."""
        self.save()  # the batch is in its next round, so that lost rows are no lost lines
        self._errors.truncate(0)
        self._done = self._done.replace(_REFUSED, _OPEN)
        self.batch.request_counts.failed = 0

    def flush(self) -> None:
        """Hand the rows to the system, so that a kill of this process loses none."""
        self._output.flush()
        self._errors.flush()

    def save(self) -> None:
        """Put rows and batch object on disk."""
        for file in (self._output, self._errors):
            file.flush()
            os.fsync(file.fileno())
        fresh = self._state.with_name(f"{self._state.name}.new")
        with fresh.open("w") as file:
            file.write(self.batch.model_dump_json(indent=2, exclude_none=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state)

    def _known(self) -> Batch | None:
        try:
            return Batch.model_validate_json(self._state.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ConfigError(
                f"{self._state} is no batch of mlxq: remove it, or use another -o"
            ) from error

    def _recover(self, file: BinaryIO, path: Path, mark: bytes) -> int:
        """Note which lines have rows, cut off a torn row at the end; returns how many have."""
        file.seek(0)
        count = end = 0
        mine = row_id(self.batch.id, 0)[:-1].encode()
        for raw in file:
            if _is_torn(raw, mine):
                if file.read(1):
                    raise ConfigError(
                        f"{path} is broken after byte {end:,}, and not only in its last row: "
                        "remove the rows from there, and run again"
                    )
                break
            found = _ROW.match(raw)
            if found is None or found[1] != mine:
                raise ConfigError(f"{path} holds what is not of this batch: use another file")
            count += self._note(int(found[2]), mark)
            end += len(raw)
        file.truncate(end)
        file.seek(0, os.SEEK_END)
        return count

    def _note(self, number: int, mark: bytes) -> bool:
        """Note that a line has its row; returns whether that is new."""
        if number >= len(self._done):
            self._done.extend(bytes(number + 1 - len(self._done) + len(self._done) // 4))
        new = not self._done[number]
        if new:
            self._done[number : number + 1] = mark
        return new


def _is_torn(raw: bytes, mine: bytes) -> bool:
    """True for a part of a row of ours: a crash may leave zeros in the place of its end."""
    if raw.endswith(b"}\n") and b"\0" not in raw:
        return False
    begin, ours = raw.partition(b"\0")[0], b'{"id": "' + mine
    return begin.startswith(ours) or ours.startswith(begin)


@contextlib.contextmanager
def _open(path: Path) -> Generator[BinaryIO]:
    try:
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        yield file


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(f"{path} is being written by another run: wait for it") from error

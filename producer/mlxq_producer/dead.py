"""Dead letters: jobs that failed, to be looked at, sent again, or dropped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlxq_producer.blobs import Blobs, blobs_of
from mlxq_producer.errors import RetryErrors
from mlxq_producer.steps import Command, Steps, checked, run_script, server_time
from mlxq_schemas import Keys, Retrying
from mlxq_schemas.errors import InvalidJob, MediaNotFound, MlxqError
from mlxq_schemas.keys import check_name
from mlxq_schemas.wire import encode_event

PAGE: Final = 500
"""Rows of the stream in one round trip."""
LATEST: Final = 10_000
"""Letters among which a job that has just died is sought."""
DAY: Final = 86_400


@dataclass(frozen=True)
class DeadLetter:
    """One row of the dead-letter stream.

    ``id`` is the job; it may be no job id at all where an entry named none. ``t`` is unix
    seconds. ``row`` names the letter itself.
    """

    id: str
    code: str
    message: str
    attempts: int
    t: float
    row: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """Which dead letters: of these jobs, with this code, older than so many seconds; None: any."""

    ids: Collection[str] | None = None
    code: str | None = None
    older_than: float | None = None

    def takes(self, letter: DeadLetter, now: float) -> bool:
        if self.ids is not None and letter.id not in self.ids:
            return False
        if self.code is not None and letter.code != self.code:
            return False
        return self.older_than is None or now - letter.t >= self.older_than


def dead_letters(keys: Keys, choice: Choice) -> Steps[list[DeadLetter]]:
    """The chosen letters, the oldest first."""
    now = yield from server_time()
    found: list[DeadLetter] = []
    after = "-"
    while True:
        [rows] = yield from checked(("XRANGE", keys.dead, after, "+", "COUNT", PAGE))
        found += [letter for letter in map(_letter, rows) if choice.takes(letter, now)]
        if len(rows) < PAGE:
            return found
        after = f"({_text(rows[-1][0])}"


def retry_dead(keys: Keys, choice: Choice) -> Steps[list[str]]:
    """Send the chosen jobs again; the ids of those whose record was still there.

    Raises :class:`RetryErrors` in the end if there are some whose media are gone: they stay dead.
    """
    letters = yield from dead_letters(keys, choice)
    named = [letter for letter in letters if _is_job(letter)]
    incomplete = yield from _incomplete(keys, [letter.id for letter in named])
    sent = yield from revive(keys, [letter for letter in named if letter.id not in incomplete])
    if incomplete:
        raise RetryErrors(sent, incomplete)
    return sent


def revive(keys: Keys, letters: Sequence[DeadLetter]) -> Steps[list[str]]:
    """Send the jobs of these letters again; the ids of those whose record was still there."""
    replies = yield from _in_pages([_revive(keys, letter) for letter in letters])
    return [letter.id for letter, reply in zip(letters, replies, strict=True) if reply == b"ok"]


def latest_letters(keys: Keys, ids: Collection[str]) -> Steps[list[DeadLetter]]:
    """The last letter of each of these jobs, sought among the latest ``LATEST`` of the queue."""
    found: dict[str, DeadLetter] = {}
    if not ids:
        return []
    before = "+"
    for _ in range(LATEST // PAGE):
        [rows] = yield from checked(("XREVRANGE", keys.dead, before, "-", "COUNT", PAGE))
        for letter in map(_letter, rows):
            if letter.id in ids:
                found.setdefault(letter.id, letter)
        if len(rows) < PAGE or len(found) == len(ids):
            break
        before = f"({_text(rows[-1][0])}"
    return list(found.values())


def _incomplete(keys: Keys, ids: Sequence[str]) -> Steps[dict[str, MlxqError]]:
    """Why jobs cannot be sent again: their media are gone. What is there is kept for them."""
    needed = yield from blobs_of(keys, ids)
    names = list(dict.fromkeys(sha for shas in needed.values() for sha in shas))
    missing: set[str] = set()
    for start in range(0, len(names), PAGE):
        page = dict.fromkeys(names[start : start + PAGE], 0.0)
        missing |= yield from Blobs(keys, DAY).keep(page)
    lost = {job_id: [sha for sha in shas if sha in missing] for job_id, shas in needed.items()}
    return {job_id: _media_gone(job_id, shas) for job_id, shas in lost.items() if shas}


def _media_gone(job_id: str, shas: Sequence[str]) -> MediaNotFound:
    shown = ", ".join(f"blob:{sha[:12]}…" for sha in shas[:3]) + (", …" if len(shas) > 3 else "")
    return MediaNotFound(
        f"job {job_id}: its {shown} is no longer on the server (it expired, or was evicted or "
        "deleted): submit the job again under another id, with its media"
    )


def drop_dead(keys: Keys, choice: Choice) -> Steps[list[DeadLetter]]:
    """Drop the chosen letters and what is kept of their jobs; the letters dropped."""
    letters = yield from dead_letters(keys, choice)
    replies = yield from _in_pages([_forget(keys, letter) for letter in letters])
    return [letter for letter, reply in zip(letters, replies, strict=True) if reply == 1]


def _in_pages(commands: Sequence[Command]) -> Steps[list[Any]]:
    replies: list[Any] = []
    for start in range(0, len(commands), PAGE):
        replies += yield from checked(*commands[start : start + PAGE])
    return replies


def _revive(keys: Keys, letter: DeadLetter) -> Command:
    event = Retrying(
        job=letter.id, code="revived", message=f"sent again after: {letter.code}", restart=True
    )
    names = [keys.job(letter.id), keys.events(letter.id), keys.result(letter.id), keys.dead]
    args = [letter.id, letter.row, encode_event(event), keys.tokens(letter.id)]
    return run_script("revive", [*names, *keys.all_jobs()], args)


def _forget(keys: Keys, letter: DeadLetter) -> Command:
    if not _is_job(letter):
        return ("XDEL", keys.dead, letter.row)
    names = [keys.job(letter.id), keys.events(letter.id), keys.result(letter.id), keys.dead]
    return run_script("forget", names, [letter.row])


def _is_job(letter: DeadLetter) -> bool:
    try:
        check_name("job id", letter.id)
    except InvalidJob:
        return False
    return True


def _letter(row: Any) -> DeadLetter:
    row_id, fields = row
    named = {_text(name): _text(value) for name, value in fields.items()}
    return DeadLetter(
        id=named.get("id", ""),
        code=named.get("code", ""),
        message=named.get("message", ""),
        attempts=int(_number(named.get("attempts"))),
        t=_number(named.get("t")),
        row=_text(row_id),
    )


def _number(value: str | None) -> float:
    """0 where somebody wrote what is none: one odd row must not hide the others."""
    try:
        number = float(value or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def choice(ids: str | Iterable[str] | None, code: str | None, older_than: float | None) -> Choice:
    """A choice from the arguments of a producer's methods."""
    chosen = None if ids is None else frozenset([ids] if isinstance(ids, str) else ids)
    return Choice(chosen, code, older_than)

"""What earlier attempts of a job have published: a new attempt goes on after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import redis

from mlxq_schemas import Event, Keys, Retrying, Started, Token
from mlxq_schemas.errors import JobError
from mlxq_schemas.wire import decode_event

PAGE: Final = 500


@dataclass(frozen=True)
class Prior:
    """Text and token ids that readers already have.

    ``restart`` says why the next attempt cannot go on after what there is; "" if it can.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    restart: str = ""


@dataclass
class _Story:
    """What the events read so far tell; ``makers`` are the models that made its text."""

    texts: list[str] = field(default_factory=list[str])
    ids: list[int] = field(default_factory=list[int])
    model: str = ""
    makers: set[str] = field(default_factory=set[str])
    complete: bool = True
    next_seq: int = 0

    def hear(self, event: Event) -> None:
        self.complete = self.complete and event.seq == self.next_seq
        self.next_seq = event.seq + 1
        match event:
            case Started():
                self.model = event.model
            case Retrying() if event.restart:
                self.texts, self.ids, self.makers, self.complete = [], [], set(), True
            case Token():
                self.texts.append(event.text)
                self.ids += event.ids
                self.makers.add(self.model)
                self.complete = self.complete and bool(event.ids or not event.text)
            case _:
                pass


def read_prior(client: redis.Redis, keys: Keys, job_id: str, model: str, seq: int) -> Prior:
    """The text published for a job since it last began anew, for ``model`` (identity) to go on.

    Raises redis errors. Fewer events than ``seq``, one that cannot be read, or that lacks its ids,
    or text of another model asks for a restart.
    """
    story = _Story()
    after = "-"
    while True:
        rows: Any = client.xrange(keys.events(job_id), min=after, count=PAGE)
        for _, fields in rows:
            try:
                story.hear(decode_event(fields.get(b"e", b"")))
            except JobError:
                story.complete = False
                story.next_seq += 1
        if len(rows) < PAGE:
            break
        after = "(" + rows[-1][0].decode()
    if not story.complete or story.next_seq != seq:
        return Prior(restart="events of the text so far, or their token ids, are missing")
    if others := {maker for maker in story.makers if maker and not _same(maker, model)}:
        return Prior(restart=f"the text so far is by {', '.join(sorted(others))}, not by {model}")
    return Prior("".join(story.texts), story.ids)


def _same(maker: str, model: str) -> bool:
    """Whether two identities (``name@digest``) are of one model, whatever it is called."""
    return maker.rpartition("@")[2] == model.rpartition("@")[2]

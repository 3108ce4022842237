"""What earlier attempts of a job have published: a new attempt goes on after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import redis

from mlxq_schemas import Keys, Retrying, Token
from mlxq_schemas.errors import JobError
from mlxq_schemas.wire import decode_event

PAGE: Final = 500


@dataclass(frozen=True)
class Prior:
    """Text and token ids that readers already have.

    ``restart``: there is text whose tokens are unknown, so that nothing can go on after it.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    restart: bool = False


def read_prior(client: redis.Redis, keys: Keys, job_id: str) -> Prior:
    """The text published for a job since it last began anew.

    Raises redis errors; an event that cannot be read, or that lacks its ids, asks for a restart.
    """
    texts: list[str] = []
    ids: list[int] = []
    complete = True
    after = "-"
    while True:
        rows: Any = client.xrange(keys.events(job_id), min=after, count=PAGE)
        for _, fields in rows:
            try:
                event = decode_event(fields.get(b"e", b""))
            except JobError:
                complete = False
                continue
            if isinstance(event, Retrying) and event.restart:
                texts, ids, complete = [], [], True
            elif isinstance(event, Token):
                texts.append(event.text)
                ids += event.ids
                complete = complete and bool(event.ids or not event.text)
        if len(rows) < PAGE:
            break
        after = "(" + rows[-1][0].decode()
    if not complete:
        return Prior(restart=True)
    return Prior("".join(texts), ids)

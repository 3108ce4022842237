"""Functions for RQ: what ``rq enqueue`` and ``rq cron`` call. They take and return plain JSON.

``rq enqueue -S json mlxq_producer.tasks.submit "Describe the image." :'["cat.png"]'`` submits a
job and has its id as return value at once; :class:`mlxq_producer.rq.Intake` runs the same call
so that the RQ job ends when the mlxq job does, with its result. ``MLXQ_REDIS_URL`` (default: the
server that RQ uses) and ``MLXQ_QUEUE`` say where to.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from rq import get_current_job

from mlxq_producer.client import Producer
from mlxq_producer.connection import QUEUE_VARIABLE, URL_VARIABLE, connect
from mlxq_producer.cron.schedule import Schedule
from mlxq_producer.cron.ticks import CatchUp, Ticker, tick_name
from mlxq_producer.media import expanded
from mlxq_producer.pipeline.folders import Captions
from mlxq_producer.pipeline.pictures import PassedOver, is_hidden, is_picture, suffix_of
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import ConfigError

_log: Final = logging.getLogger(__name__)


def submit(prompt: str | None = None, images: Sequence[str] | None = None, **fields: Any) -> str:
    """Submit one job; returns its id, which is that of the RQ job unless ``id`` is given.

    Takes the fields of a job as :meth:`mlxq_producer.Producer.submit` does, and raises what it
    raises. To run it again, as RQ does after an error, is to submit once.
    """
    running = get_current_job()
    named = {"id": running.id} if running is not None else {}
    with _producer() as producer:
        return producer.submit(**named | job_fields(prompt, images, **fields))


def job_fields(
    prompt: str | None = None, images: Sequence[str] | None = None, **fields: Any
) -> dict[str, Any]:
    """The fields of the job that :func:`submit`, called like this, submits."""
    given = {"prompt": prompt, "images": list(images) if images else None}
    return {name: value for name, value in (given | fields).items() if value is not None}


def submit_folder(
    folder: str, prompt: str = "Describe the image.", fields: Mapping[str, Any] | None = None
) -> int:
    """Submit each picture of a folder once; returns how many pictures there are. Other files are
    counted by suffix in a warning of the log.

    An id comes from content, prompt and ``fields`` (further fields of every job). So a call that
    is made twice, by two schedulers or on two nights, is no second job while results are kept.
    Raises ``ConfigError`` where there is no such folder.
    """
    place = expanded(folder)
    if not place.is_dir():
        raise ConfigError(f"no folder {folder}: give the path of one that this machine sees")
    files = sorted(
        path for path in place.iterdir() if not is_hidden(path.name) and not path.is_dir()
    )
    paths = [path for path in files if is_picture(path.name)]
    over, captions = PassedOver(), Captions()
    for path in files:
        if not is_picture(path.name) and path not in captions:
            over.add(suffix_of(path.name))
    if over:
        _log.warning("%s: %s", folder, over.told())
    common = {**(fields or {}), "prompt": prompt}
    with _producer() as producer:
        jobs = ({**common, "id": _content_id(path, common), "images": [path]} for path in paths)
        return len(producer.submit_many(jobs))


def submit_tick(name: str, schedule: str, catch_up: str = "last", **fields: Any) -> list[str]:
    """Submit a job for each tick of a schedule that is due and that nobody has done yet.

    For ``rq cron``, which knows no lock and forgets what it missed: it may call this from several
    schedulers and as often as it likes. An id is ``NAME-TICK``, as in ``report-20301231T0300``.
    Returns the ids. ``catch_up`` is ``skip``, ``last`` or ``all``.
    """
    ids: list[str] = []
    with _client() as client, Producer(client=client, queue=queue_name()) as producer:

        def do(tick: float) -> int:
            job_id = f"{name}-{tick_name(tick)}"
            ids.append(producer.submit(**job_fields(**fields), id=job_id))
            return 0

        Ticker(client, producer.keys, name).run(Schedule.parse(schedule), do, CatchUp(catch_up))
    return ids


def _content_id(path: Path, common: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(path.read_bytes())
    digest.update(repr(sorted(common.items())).encode())
    return f"picture-{digest.hexdigest()}"


@contextmanager
def _producer() -> Generator[Producer]:
    with _client() as client, Producer(client=client, queue=queue_name()) as producer:
        yield producer


@contextmanager
def _client() -> Generator[redis.Redis]:
    running = get_current_job()
    theirs = running.connection if running is not None else None
    client = client_beside(theirs)
    try:
        yield client
    finally:
        if client is not theirs:
            client.close()


def queue_name() -> str:
    """The mlxq queue that these functions use."""
    return os.environ.get(QUEUE_VARIABLE) or DEFAULT_QUEUE


def client_beside(connection: redis.Redis | None) -> redis.Redis:
    """The client for mlxq, for a process whose RQ uses ``connection``."""
    if connection is None or os.environ.get(URL_VARIABLE):
        return connect(None, queue_name())
    return connection

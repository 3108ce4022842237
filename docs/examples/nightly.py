"""Caption every new picture of a folder each night: a task for RQ, registered with its cron.

``rq cron --path docs/examples nightly`` enqueues the task when it is time;
``rq worker --path docs/examples captions`` runs it. The task only submits: the captions come
from an mlxq worker, and ``mlxq result ID`` or the results stream has them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rq import cron

from mlxq_producer import Producer

PICTURES = {".jpg", ".jpeg", ".png", ".webp"}


def submit_folder(folder: str, prompt: str = "Describe the image.") -> int:
    """Submit each picture once and return how many there are.

    The id comes from the picture's content, so that a night that runs twice, or a picture that
    was there before, is no second job while its result is kept.
    """
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in PICTURES)
    with Producer() as producer:
        producer.submit_many({"id": _id(p), "prompt": prompt, "images": [p]} for p in paths)
    return len(paths)


def _id(path: Path) -> str:
    return "nightly-" + hashlib.sha256(path.read_bytes()).hexdigest()


cron.register(
    submit_folder,
    queue_name="captions",
    args=(os.environ.get("MLXQ_NIGHTLY_FOLDER", "pictures"),),
    cron="0 3 * * *",
)

"""Work for the night: calls for RQ, registered with its cron.

``rq cron --path docs/examples nightly`` enqueues them when it is time, and ``rq worker --path
docs/examples nightly`` runs them. They only submit: the texts come from an mlxq worker, and ``mlxq
result ID`` or the results stream has them. Two schedulers do no harm; see ``docs/cron.md``.
"""

from __future__ import annotations

import os

from rq import cron

from mlxq_producer.tasks import submit_folder, submit_tick

# Each new picture of a folder, every night at three.
cron.register(
    submit_folder,
    queue_name="nightly",
    args=(os.environ.get("NIGHTLY_FOLDER", "pictures"),),
    cron="0 3 * * *",
)

# One job a day; looked for each quarter of an hour, so that a night that was missed is made up for.
cron.register(
    submit_tick,
    queue_name="nightly",
    kwargs={"name": "greeting", "schedule": "0 4 * * *", "prompt": "Write a greeting for today."},
    cron="*/15 * * * *",
)

"""Submit jobs to mlxq and read what becomes of them.

::

    from mlxq_producer import Producer

    with Producer() as producer:
        job_id = producer.submit(prompt="Describe the picture.", images=["cat.png"])
        for event in producer.follow(job_id):
            if event.type == "token":
                print(event.text, end="", flush=True)
"""

from mlxq_producer.async_client import AsyncProducer
from mlxq_producer.client import Producer
from mlxq_producer.dead import DeadLetter
from mlxq_producer.embedded import EmbeddedServer
from mlxq_producer.errors import SubmitErrors
from mlxq_producer.operations import CancelOutcome
from mlxq_producer.pipeline.api import caption
from mlxq_producer.place import Place
from mlxq_producer.queue_status import QueueStatus
from mlxq_producer.submission import JobLike
from mlxq_producer.worker_status import WorkerStatus

__all__ = [
    "AsyncProducer",
    "CancelOutcome",
    "DeadLetter",
    "EmbeddedServer",
    "JobLike",
    "Place",
    "Producer",
    "QueueStatus",
    "SubmitErrors",
    "WorkerStatus",
    "caption",
]

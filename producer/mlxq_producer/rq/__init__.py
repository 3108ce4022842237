"""RQ jobs that wait for their mlxq jobs without blocking a worker (extra ``rq``).

``rq worker -S json -w mlxq_producer.rq.Intake captions`` takes calls of
:func:`mlxq_producer.tasks.submit` off the RQ queue ``captions`` and hands them to mlxq.
"""

from mlxq_producer.rq.ending import JobNotFinished
from mlxq_producer.rq.intake import Intake

__all__ = ["Intake", "JobNotFinished"]

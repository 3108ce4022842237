"""OpenAI batch files: requests in, response and error rows out."""

from mlxq_producer.batch.detached import DetachedBatches
from mlxq_producer.batch.record import Batch, RequestCounts
from mlxq_producer.batch.running import BatchRun

__all__ = ["Batch", "BatchRun", "DetachedBatches", "RequestCounts"]

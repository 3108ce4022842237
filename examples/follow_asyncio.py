"""Wait for many jobs at once with asyncio and redis-py; print each text when it is whole.

python follow_asyncio.py JOB_ID ...
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import redis.asyncio

LAST = ("finished", "failed", "cancelled", "expired")


async def follow(
    client: redis.asyncio.Redis, queue: str, job_id: str
) -> AsyncIterator[dict[str, Any]]:
    """The events of a job, past and live, in order and each once, to the last."""
    keys = f"mlxq:{{{queue}}}"
    done = 0
    async with client.pubsub() as channel:
        await channel.subscribe(f"{keys}:tokens:{job_id}")
        while True:
            # The stream is the truth, the channel only says when to look.
            for _, fields in await client.xrange(f"{keys}:events:{job_id}", min=f"{done + 1}-0"):
                event = msgpack.unpackb(fields[b"e"])
                done = event["seq"] + 1
                yield event
                if event["type"] in LAST:
                    return
            if await channel.get_message(timeout=1.0) is None and not await client.exists(
                f"{keys}:job:{job_id}"
            ):
                raise LookupError(f"queue {queue} has no job {job_id}")


async def print_text(client: redis.asyncio.Redis, queue: str, job_id: str) -> None:
    """Print one line when the job has ended."""
    async for event in follow(client, queue, job_id):
        if event["type"] in LAST:
            print(job_id, event["type"], event.get("text", event.get("message", "")), flush=True)


async def main(job_ids: list[str]) -> None:
    """Follow all jobs side by side."""
    url = os.environ.get("MLXQ_REDIS_URL", "redis://127.0.0.1:6379/0")
    queue = os.environ.get("MLXQ_QUEUE", "captions")
    async with redis.asyncio.Redis.from_url(url) as client:
        await asyncio.gather(*(print_text(client, queue, job_id) for job_id in job_ids))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

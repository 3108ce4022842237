"""Print the text of a job as it is made, with redis-py and msgpack alone.

python follow_redis_py.py JOB_ID
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import redis

LAST = ("finished", "failed", "cancelled", "expired")


def follow(client: redis.Redis, queue: str, job_id: str) -> Iterator[dict[str, Any]]:
    """The events of a job, past and live, in order and each once, to the last."""
    keys = f"mlxq:{{{queue}}}"
    done = 0
    with client.pubsub() as channel:
        channel.subscribe(f"{keys}:tokens:{job_id}")
        while True:
            # The stream is the truth: whoever comes late or loses messages reads it all here.
            for _, fields in client.xrange(f"{keys}:events:{job_id}", min=f"{done + 1}-0"):
                event = msgpack.unpackb(fields[b"e"])
                done = event["seq"] + 1
                yield event
                if event["type"] in LAST:
                    return
            # The channel only says when to look again.
            if channel.get_message(timeout=1.0) is None and not client.exists(
                f"{keys}:job:{job_id}"
            ):
                raise LookupError(f"queue {queue} has no job {job_id}")


def main(job_id: str) -> int:
    """Print a job's text; 0 if the job finished."""
    url = os.environ.get("MLXQ_REDIS_URL", "redis://127.0.0.1:6379/0")
    with redis.Redis.from_url(url) as client:
        for event in follow(client, os.environ.get("MLXQ_QUEUE", "captions"), job_id):
            if event["type"] == "token":
                print(event["text"], end="", flush=True)
            elif event["type"] == "retrying" and event["restart"]:
                print("\n[the text begins anew]", file=sys.stderr)
            elif event["type"] in LAST:
                print()
                return 0 if event["type"] == "finished" else 1
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

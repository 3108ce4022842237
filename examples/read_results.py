"""Take the results of all jobs of a queue, shared among the readers of a group.

python read_results.py GROUP NAME

Each row goes to one reader of the group. It is acknowledged once it has been dealt with; a reader
that comes back under its name after a crash begins with the rows that it left open.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import redis

Row = tuple[bytes, dict[bytes, bytes]]


def rows(client: redis.Redis, stream: str, group: str, name: str) -> Iterator[list[Row]]:
    """Rows for this reader, up to a hundred at a time: first those left open, then new ones."""
    try:
        client.xgroup_create(stream, group, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):  # the group is there already
            raise
    last = "0"
    while True:
        # BLOCK stays below the socket's timeout.
        answer: Any = client.execute_command(
            *("XREADGROUP", "GROUP", group, name, "COUNT", 100, "BLOCK", 2000),
            *("STREAMS", stream, last),
        )
        found: list[Row] = answer[0][1] if answer else []
        if found:
            yield found
        if last != ">":
            last = found[-1][0].decode() if found else ">"


def main(group: str, name: str) -> None:
    """Print each result as a line of JSON."""
    url = os.environ.get("MLXQ_REDIS_URL", "redis://127.0.0.1:6379/0")
    queue = f"mlxq:{{{os.environ.get('MLXQ_QUEUE', 'captions')}}}"
    with redis.Redis.from_url(url, protocol=2) as client:
        for found in rows(client, f"{queue}:results", group, name):
            ids = [fields[b"id"].decode() for _, fields in found]
            results = client.mget([f"{queue}:result:{job_id}" for job_id in ids])
            for job_id, data in zip(ids, results, strict=True):
                # Rows and results are kept for the same time, a day by default.
                result = msgpack.unpackb(data) if data else {"type": "gone"}
                line = {"id": job_id, "type": result["type"], "text": result.get("text")}
                print(json.dumps(line, ensure_ascii=False), flush=True)
            client.xack(f"{queue}:results", group, *(entry for entry, _ in found))


if __name__ == "__main__":
    main(*sys.argv[1:3])

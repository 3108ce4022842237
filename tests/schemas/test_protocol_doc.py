"""What docs/protocol.md shows works, line by line, against a real server."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Job, Keys, Result, wire
from mlxq_schemas.events import TERMINAL_TYPES
from mlxq_schemas.job import UNSUPPORTED_FIELDS
from mlxq_schemas.scripts import ScriptName

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def shell_lines(queue: str) -> list[list[str]]:
    """The words of each redis-cli line, without the program's name."""
    lines = "".join(blocks("sh")).replace("{captions}", f"{{{queue}}}").splitlines()
    return [shlex.split(line)[1:] for line in lines]


def test_shell_lines(redis_client: redis.Redis, queue: str) -> None:
    push, add, state, events, result = shell_lines(queue)
    worker = LuaWorker(redis_client, queue)
    assert redis_client.execute_command(*push) == 1
    assert redis_client.execute_command(*add)
    assert redis_client.execute_command(*state) is None
    [(entry, job_id)] = worker.read()
    claimed = worker.claim(job_id, entry)
    epoch, spec = claimed[1], claimed[5]
    assert wire.decode_job(spec, job_id).check().id == "hello-1"
    assert redis_client.execute_command(*state) == b"running"
    assert worker.finish(job_id, epoch, entry, "") == 1
    assert len(redis_client.execute_command(*events)) == 1
    assert redis_client.execute_command(*result)


def test_picture_of_the_shell_lines_is_one() -> None:
    from mlxq_worker.prepare.media import MediaPolicy, fetch_image

    job = wire.decode_job(shell_lines("captions")[0][-1].encode(), "hello-1")
    [(_, ref)] = job.media()
    image = fetch_image(ref, MediaPolicy(), lambda _: None).decode(MediaPolicy())
    assert image.size == (8, 8)


def test_python_blocks(redis_client: redis.Redis, server: EmbeddedServer, queue: str) -> None:
    submit, read, replay = (
        block.replace("port=6379", f"port={server.port}").replace("{captions}", f"{{{queue}}}")
        for block in blocks("python")
    )
    names: dict[str, Any] = {}
    exec(submit, names)
    assert LuaWorker(redis_client, queue).do(["a red ", "square"]) == "hello-2"
    exec(read, names)
    assert names["text"] == "a red square"
    exec(replay, names)
    assert [event["type"] for event in names["events"]] == ["started", "token", "token", "finished"]


def test_every_key_is_named() -> None:
    keys = Keys("NAME")
    shown = [*keys.all_jobs(), keys.job("<id>"), keys.blob("<sha256>"), keys.events("<id>")]
    shown += [keys.tokens("<id>"), keys.result("<id>"), keys.results, keys.dead, keys.delayed]
    shown += [keys.sweeper, keys.keeper, keys.control, keys.workers, keys.worker("<name>")]
    assert [key for key in shown if f"`{key.replace('mlxq:{NAME}', 'Q')}`" not in PAGE] == []


@pytest.mark.parametrize("name", [*Job.model_fields, *Result.model_fields, *sorted(TERMINAL_TYPES)])
def test_every_field_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
def test_refused_fields_are_named_as_such(name: str) -> None:
    paragraph = next(part for part in PAGE.split("\n\n") if "refuses with `unsupported`" in part)
    assert f"`{name}`" in paragraph


@pytest.mark.parametrize("name", ScriptName.__args__)
def test_every_script_is_named(name: str) -> None:
    assert f"| `{name}` |" in PAGE

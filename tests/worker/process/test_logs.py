"""Log lines."""

from __future__ import annotations

import json
import logging

from mlxq_worker.process.logs import JsonFormatter, TextFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("t").makeRecord(
        "t", logging.INFO, "f", 1, message, (), None, extra=extra
    )


def test_text_lines_have_pairs() -> None:
    line = TextFormatter().format(record("ready", rows=3, seconds=1.23456, reason="a b", none=""))
    assert line.split(" ", 1)[1] == 'info    ready rows=3 seconds=1.235 reason="a b" none=""'


def test_json_lines_are_objects() -> None:
    fields = json.loads(JsonFormatter().format(record("ready", rows=3, why="redis://u:p@h")))
    assert (fields["message"], fields["rows"], fields["why"]) == ("ready", 3, "redis://…@h")


def test_tracebacks_are_kept() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        one = record("failed")
        one.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: boom" in TextFormatter().format(one)
    assert "ValueError: boom" in json.loads(JsonFormatter().format(one))["traceback"]

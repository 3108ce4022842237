"""Log lines on stderr: ``key=value`` pairs, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

from mlxq_schemas.plain import to_json
from mlxq_worker.config import LogFormat, LogLevel
from mlxq_worker.process.redact import redact

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/+,")


class TextFormatter(logging.Formatter):
    """``time level message key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        pairs = " ".join(f"{key}={_quoted(value)}" for key, value in _extra(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {redact(record.getMessage())}"
        line = f"{line} {pairs}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: ``time, level, logger, message`` and what else was given."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **{key: _clean(value) for key, value in _extra(record).items()},
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return to_json(fields)


def set_up(level: LogLevel, style: LogFormat) -> None:
    """Send the log of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mlxq_worker").setLevel(level.upper())


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{stamp}.{int(record.msecs):03d}Z"


def _clean(value: object) -> object:
    if isinstance(value, bool | int | None):
        return value
    return round(value, 3) if isinstance(value, float) else redact(str(value))


def _quoted(value: object) -> str:
    text = str(_clean(value))
    return text if text and set(text) <= _PLAIN else json.dumps(text, ensure_ascii=False)

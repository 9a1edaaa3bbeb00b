"""Structured logs: one JSON object a line, with the request and the session, and never a user's text.

A record carries only its message, which is ours, and the fields named in `FIELDS`. An exception is written as
its class and the places it passed through: its message may quote what a user sent, so it is left out.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

LOGGER = "rlstm_server"
FIELDS = ("request_id", "session_id", "tenant", "endpoint", "status", "seconds", "outcome", "code", "version")
"""What a line may carry besides its message, given as `extra`."""


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name in FIELDS if (value := getattr(record, name, None)) is not None)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = type(record.exc_info[1]).__qualname__
            line["trace"] = _places(record.exc_info[1])
        return json.dumps(line, default=str, ensure_ascii=True)


def _places(error: BaseException) -> list[str]:
    """Where the error came through, as `file:line function`, innermost last; no source line, no value."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]


def configure_logs(level: str, *, stream: TextIO | None = None) -> None:
    """Send the server's and uvicorn's records at or above `level` to standard error, or to `stream`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, least in ((LOGGER, level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False

"""Logs: one JSON object a line or, on a terminal, a line to read; never a user's text.

A record carries only its message, which is ours, and the fields named in `FIELDS`. An exception is written as
its class and the places it passed through: its message may quote what a user sent, so it is left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import traceback
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TextIO

from rlstm_server.errors import StartupError

LOGGER = "rlstm_server"
OURS = frozenset({LOGGER, "uvicorn"})
AUDIT = f"{LOGGER}.audit"
FIELDS = (
    "request_id",
    "trace_id",
    "tenant",
    "key_id",
    "endpoint",
    "session_id",
    "made",
    "version_before",
    "version",
    "operation",
    "status",
    "seconds",
    "outcome",
    "code",
)
"""What a line may carry besides its message, given as `extra`."""


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        line.update((name, value) for name in FIELDS if (value := getattr(record, name, None)) is not None)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = type(record.exc_info[1]).__qualname__
            line["trace"] = _places(record.exc_info[1])
        return json.dumps(line, default=str, ensure_ascii=True)


class ReadableFormatter(logging.Formatter):
    """Writes a record as one line for a person: time, level, message, and what it may carry besides."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        facts = ((name, getattr(record, name, None)) for name in FIELDS)
        told = " ".join(f"{name}={value}" for name, value in facts if value is not None)
        line = f"{time} {record.levelname.lower():<7} {_message(record)} {told}".rstrip()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line += f" {type(error).__qualname__} at {', '.join(_places(error))}"
        return "".join(character if character.isprintable() else " " for character in line)


def _places(error: BaseException) -> list[str]:
    """Where the error came through, as `file:line function`, innermost last; no source line, no value."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]


def _message(record: logging.LogRecord) -> str:
    """Give our own sentences whole, and of a library's what it wrote before it put values in."""
    if record.name.split(".")[0] in OURS:
        return record.getMessage()
    return str(record.msg) if record.args else "a message that may hold values"


def configure_logs(level: str, *, audit_file: Path | None = None, stream: TextIO | None = None) -> None:
    """Send records at or above `level` to standard error, or to `stream`; libraries' warnings too.

    A terminal gets lines to read, anything else JSON.
    The audit log goes to `audit_file`, which may be moved away while it is written, or beside the others. It
    does not depend on the level. Raises StartupError when the file cannot be written.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(ReadableFormatter() if handler.stream.isatty() else JsonFormatter())
    for name, least in ((LOGGER, level.upper()), ("uvicorn", "WARNING"), (None, "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False
    audit = logging.getLogger(AUDIT)
    audit.setLevel(logging.INFO)
    audit.handlers = [_file_handler(audit_file)] if audit_file is not None else []
    audit.propagate = audit_file is None


class _AuditFile(WatchedFileHandler):
    """A file for its owner's eyes. What cannot be written there goes beside the other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; the file may have to be made anew, which can fail."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say what is wrong, and write the line elsewhere."""
        log = logging.getLogger(LOGGER)
        log.error("the audit log cannot be written", exc_info=sys.exc_info())
        log.handle(record)

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_for_its_owner)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file_handler(path: Path) -> logging.Handler:
    try:
        handler = _AuditFile(path, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"RLSTM_AUDIT_FILE: cannot write {path}: {error.strerror}") from None
    handler.setFormatter(JsonFormatter())
    return handler


def catch_stray_faults(loop: asyncio.AbstractEventLoop) -> None:
    """Log faults that nobody waits for as all others are: Python would print what their messages quote."""
    loop.set_exception_handler(lambda _loop, context: _stray(context.get("exception")))
    threading.excepthook = lambda fault: _stray(fault.exc_value)
    sys.unraisablehook = lambda fault: _stray(fault.exc_value)


def _stray(fault: BaseException | None) -> None:
    logging.getLogger(LOGGER).error("a fault that nobody waited for", exc_info=fault)

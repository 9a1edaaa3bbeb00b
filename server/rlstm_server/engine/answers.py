"""Answers as they are stored with a commit, so that a repeat of the operation gets the same one."""

from dataclasses import asdict, replace
from typing import Any, Final

import orjson

from rlstm_server.engine.description import adaptation_choice, ancestor
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import AppendAnswer, Columns, SessionInfo, SessionTotals, Timings, Totals
from rlstm_server.store.base import Limits

STORED_BYTES: Final = Limits().answer_bytes
"""A longer answer is not stored whole; a repeat gets its totals."""

_OF_THE_MODEL: Final = ("model", "fingerprint", "adaptation_fingerprint")


def encode(answer: object) -> bytes:
    """Write an answer (a dataclass or plain data); empty when it is too long to be stored."""
    data = orjson.dumps(answer)
    return data if len(data) <= STORED_BYTES else b""


def summarise(answer: AppendAnswer) -> bytes:
    """Write the short form of an append's answer."""
    return orjson.dumps(replace(answer, columns=None))


def parse(data: bytes) -> dict[str, Any]:
    """Read what `encode` wrote. Raises StateCorrupt when it is no object."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StateCorrupt("a stored answer cannot be read") from error
    if not isinstance(content, dict):
        raise StateCorrupt("a stored answer is no object")
    return content


def append_answer(data: bytes) -> AppendAnswer:
    """Read an append's answer, or its short form. Raises StateCorrupt."""
    content = parse(data)
    try:
        columns, totals = content.pop("columns"), content.pop("totals")
        return AppendAnswer(
            columns=None if columns is None else Columns(**{k: _frozen(v) for k, v in columns.items()}),
            totals=None if totals is None else Totals(**totals),
            weights=tuple(content.pop("weights")),
            timings=Timings(**content.pop("timings")),
            **content,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorrupt("a stored answer lacks a field") from error


def encode_session(info: SessionInfo) -> bytes:
    """Write the description of a session after a change; empty when it is too long to be stored.

    Whose it is is not written: the session's head says it, and servers from before it was noted could not
    read an answer with more fields than they know.
    """
    return encode({name: of for name, of in asdict(info).items() if name not in _OF_THE_MODEL})


def session_info(data: bytes, present: SessionInfo) -> SessionInfo:
    """Read the description of a session after a change; `present` is that of now. Raises StateCorrupt."""
    content = parse(data) | {name: getattr(present, name) for name in _OF_THE_MODEL}
    try:
        return SessionInfo(
            adaptation=adaptation_choice(content.pop("adaptation")),
            weights=tuple(content.pop("weights")),
            totals=SessionTotals(**content.pop("totals")),
            forked_from=ancestor(content.pop("forked_from", None)),
            **content,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorrupt("a stored answer lacks a field") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value

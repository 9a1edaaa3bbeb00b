"""Sessions and answers as the store has them.

A session is described by its `SessionInfo` as JSON: in its head, so that a listing shows it without opening
its state, and as the answer to what made or changed it. The answer to a change is stored with it, so that a
repeat gets the same one. It has a summary, kept as long as the operation's id is known, and details, of which
a session keeps only so many: the columns of an append, the metadata of a session. Columns are stored as
compressed safetensors, each number as the smallest type that holds all of its column, spans as differences.
"""

import zlib
from dataclasses import replace
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rlstm_server.engine.models import Models
from rlstm_server.engine.state import SessionCopy, SessionFacts
from rlstm_server.errors import InvalidField, ModelMismatch, StateCorrupt
from rlstm_server.schemas.sessions import AppendAnswer, SessionInfo
from rlstm_server.schemas.text import Columns
from rlstm_server.store.base import Head

_LEVEL: Final = 1
_FLOATS: Final = (
    *("logprobs", "static_logprobs", "entropies", "weights_logprobs", "memory_logprobs"),
    *("space_logprobs", "static_space_logprobs"),
)
_SESSION: Final = TypeAdapter(SessionInfo)
_APPEND: Final = TypeAdapter(AppendAnswer)


# ---- sessions ---------------------------------------------------------------------------------------------


def info_of(copy: SessionCopy, expires_at_ms: int = 0) -> SessionInfo:
    """Describe a copy of a session."""
    state, facts = copy.state, copy.facts
    return SessionInfo(
        id=copy.key.session_id,
        name=facts.name,
        model=state.served.name,
        fingerprint=state.served.fingerprint,
        adaptation_fingerprint=state.served.identity.adaptation_fingerprint,
        version=copy.revision.version,
        position=state.adapted.position,
        created_at=facts.created_at_ms / 1000,
        expires_at=expires_at_ms / 1000,
        state_bytes=state.nbytes,
        adaptation=state.choice,
        weights=state.adapted.weights,
        norm_ratio=state.norm_ratio,
        totals=state.totals,
        pending=len(state.place.pending),
        metadata=facts.metadata,
        learning=facts.learning,
        forked_from=facts.forked_from,
    )


def write_session(info: SessionInfo) -> bytes:
    """Write the description of a session."""
    return _SESSION.dump_json(info, exclude_computed_fields=True)


def read_session(data: bytes) -> SessionInfo:
    """Read the description of a session. Raises StateCorrupt."""
    try:
        return _SESSION.validate_json(data)
    except ValidationError as error:
        raise StateCorrupt("the session's description cannot be read") from error


def session_info(head: Head) -> SessionInfo:
    """Describe a session by its head, whose times are the store's. Raises StateCorrupt."""
    return replace(
        read_session(head.info),
        id=head.key.session_id,
        name=head.name,
        version=head.version,
        created_at=head.created_at_ms / 1000,
        expires_at=head.expires_at_ms / 1000,
    )


def session_facts(head: Head) -> SessionFacts:
    """What was said of a session. Raises StateCorrupt."""
    info = read_session(head.info)
    return SessionFacts(
        name=head.name,
        created_at_ms=head.created_at_ms,
        ttl_ms=head.ttl_ms,
        metadata=info.metadata,
        learning=info.learning,
        forked_from=info.forked_from,
    )


def most_bytes(models: Models, head: Head) -> int:
    """What a session's state may come to; of a damaged description nobody can say."""
    try:
        info = read_session(head.info)
    except StateCorrupt:
        return 0
    try:
        served = models.with_identity(info.fingerprint, info.adaptation_fingerprint)
        return max(info.state_bytes, served.state_bytes(info.adaptation))
    except (InvalidField, ModelMismatch):  # of a model that is not served here, or a calibration that was
        return info.state_bytes


# ---- answers ----------------------------------------------------------------------------------------------


def store_session(info: SessionInfo) -> tuple[bytes, bytes]:
    """Write the description of a session after a change: its metadata are the details."""
    details = orjson.dumps(info.metadata) if info.metadata else b""
    return write_session(replace(info, metadata={})), details


def store_append(answer: AppendAnswer) -> tuple[bytes, bytes]:
    """Write an append's answer: its columns are the details."""
    summary, columns = _APPEND.dump_json(replace(answer, columns=None)), answer.columns
    if columns is None:
        return summary, b""
    written: dict[str, NDArray[Any]] = {}
    for name, column in vars(columns).items():
        if column is None or name == "top":
            continue
        values = np.asarray(column, dtype=np.float64 if name in _FLOATS else np.int64)
        if name == "ends":
            values = values - np.asarray(columns.starts, dtype=np.int64)
        elif name == "starts":
            values = np.diff(values, prepend=0)
        # the same numbers in the smallest type that holds them all exactly
        for kind in ("<f4",) if values.dtype.kind == "f" else ("u1", "<u2", "<i4"):
            with np.errstate(over="ignore"):
                smaller = values.astype(kind)
            if np.array_equal(smaller, values):
                values = smaller
                break
        written[name] = values
    return summary, zlib.compress(save(written), _LEVEL)


def read_append(summary: bytes, details: bytes | None) -> AppendAnswer:
    """Read an append's answer; it says where its scores are no longer stored. Raises StateCorrupt."""
    try:
        return replace(
            _APPEND.validate_json(summary),
            columns=_unpack(details) if details else None,
            scores_stored=details is not None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, SafetensorError) as error:
        raise StateCorrupt("a stored answer cannot be read") from error


def parse(data: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises StateCorrupt when it is none."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StateCorrupt("a stored answer cannot be read") from error
    if not isinstance(content, dict):
        raise StateCorrupt("a stored answer is no object")
    return content


def _unpack(details: bytes) -> Columns:
    found: dict[str, NDArray[Any]] = {
        name: values.astype(np.float64 if name in _FLOATS else np.int64)
        for name, values in load(zlib.decompress(details)).items()
    }
    found["starts"] = np.cumsum(found["starts"])
    found["ends"] = found["ends"] + found["starts"]
    named: dict[str, Any] = {name: tuple(values.tolist()) for name, values in found.items()}
    return Columns(**{"static_logprobs": None, **named})

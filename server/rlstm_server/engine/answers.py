"""Answers as they are stored with a commit, so that a repeat of the operation gets the same one.

An answer has a summary, which is kept as long as the operation's id is known, and details, of which a session
keeps only so many: the columns of an append, the metadata of a described session. Columns are stored as

    zlib(header length (4, little-endian) | header (JSON: name, type and count of each) | their numbers)

each number as the smallest type that holds all of its column, spans as differences.
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from rlstm_server.engine.description import adaptation_choice, ancestor
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import AppendAnswer, Columns, SessionInfo, SessionTotals, Timings, Totals

_LENGTH_BYTES: Final = 4
_LEVEL: Final = 1
_FLOATS: Final = ("logprobs", "static_logprobs", "entropies")


class Stored(NamedTuple):
    """An answer as it is stored; see the module."""

    summary: bytes
    details: bytes


def store_append(answer: AppendAnswer) -> Stored:
    """Write an append's answer: its columns are the details."""
    details = b"" if answer.columns is None else _pack(answer.columns)
    return Stored(orjson.dumps(replace(answer, columns=None)), details)


def read_append(summary: bytes, details: bytes | None) -> AppendAnswer:
    """Read an append's answer; it says where its scores are no longer stored. Raises StateCorrupt."""
    content = parse(summary)
    try:
        totals = content.pop("totals")
        return AppendAnswer(
            **{
                **content,
                "columns": _unpack(details) if details else None,
                "totals": None if totals is None else Totals(**totals),
                "weights": tuple(content["weights"]),
                "timings": Timings(**content["timings"]),
                "scores_stored": details is not None,
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise StateCorrupt("a stored answer lacks a field") from error


def store_session(info: SessionInfo) -> Stored:
    """Write the description of a session after a change: its metadata are the details."""
    details = orjson.dumps(info.metadata) if info.metadata else b""
    return Stored(orjson.dumps(replace(info, metadata={})), details)


def encode_session(info: SessionInfo) -> bytes:
    """Write the whole description of a session that is made."""
    return orjson.dumps(info)


def read_session(data: bytes) -> SessionInfo:
    """Read the description of a session. Raises StateCorrupt."""
    content = parse(data)
    try:
        return SessionInfo(
            adaptation=adaptation_choice(content.pop("adaptation")),
            weights=tuple(content.pop("weights")),
            totals=SessionTotals(**content.pop("totals")),
            forked_from=ancestor(content.pop("forked_from")),
            **content,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorrupt("a stored answer lacks a field") from error


def parse(data: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises StateCorrupt when it is none."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StateCorrupt("a stored answer cannot be read") from error
    if not isinstance(content, dict):
        raise StateCorrupt("a stored answer is no object")
    return content


def _pack(columns: Columns) -> bytes:
    written: list[tuple[str, NDArray[Any]]] = []
    for name, column in asdict(columns).items():
        if column is None or name == "top":
            continue
        values = np.asarray(column, dtype=np.float64 if name in _FLOATS else np.int64)
        if name == "ends":
            values = values - np.asarray(columns.starts, dtype=np.int64)
        elif name == "starts":
            values = np.diff(values, prepend=0)
        written.append((name, _smallest(values)))
    header = orjson.dumps([[name, values.dtype.str, len(values)] for name, values in written])
    body = b"".join(values.tobytes() for _, values in written)
    return zlib.compress(len(header).to_bytes(_LENGTH_BYTES, "little") + header + body, _LEVEL)


def _unpack(details: bytes) -> Columns:
    data = zlib.decompress(details)
    at = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    found: dict[str, NDArray[Any]] = {}
    for name, kind, count in orjson.loads(data[_LENGTH_BYTES:at]):
        dtype = np.dtype(kind)
        found[name] = np.frombuffer(data, dtype, count, at).astype(
            np.float64 if name in _FLOATS else np.int64
        )
        at += count * dtype.itemsize
    found["starts"] = np.cumsum(found["starts"])
    found["ends"] = found["ends"] + found["starts"]
    named: dict[str, Any] = {name: tuple(values.tolist()) for name, values in found.items()}
    return Columns(**{"static_logprobs": None, **named})


def _smallest(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in the smallest type that holds them all exactly."""
    kinds: Sequence[str] = ("<f4",) if values.dtype.kind == "f" else ("u1", "<u2", "<i4")
    for kind in kinds:
        with np.errstate(over="ignore"):
            smaller = values.astype(kind)
        if np.array_equal(smaller, values):
            return smaller
    return values.astype("<f8" if values.dtype.kind == "f" else "<i8")

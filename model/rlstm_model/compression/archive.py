"""A compressed file: made of any bytes by a model, and decompressed by the same one."""

import hashlib
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rlstm_model import checkpoint as checkpoints
from rlstm_model import native
from rlstm_model.compression import header as headers
from rlstm_model.compression.coder import Decoder, Encoder
from rlstm_model.compression.header import CompressionError, Header
from rlstm_model.compression.reading import KINDS, Kind, Reading
from rlstm_model.compression.tokens import check, tokens_of
from rlstm_model.local import LocalModel, load

Progress: TypeAlias = Callable[[int, int | None], None]
"""Told how many bytes of the content are done, of how many, where that is known."""

_READ_BYTES: Final = 16_384
_TOKENS_AT_ONCE: Final = 1_024


class Summary(NamedTuple):
    """What became of what.

    bytes   of the content
    packed  of the whole compressed file
    bits    what the tokens were scored with: the file has as many, and its header
    """

    bytes: int
    packed: int
    bits: float


def compress(
    source: IO[bytes],
    sink: IO[bytes],
    *,
    model: str | Path = "bytes-small",
    adapt: Kind = "both",
    progress: Progress = lambda done, of: None,
) -> Summary:
    """Write a compressed file of all that is read; of that no more is held than the compressed file takes.

    Raises CheckpointError and CalibrationError for a model that cannot be used, CompressionError for one that
    cannot code any bytes, ArithmeticError for one that computes no numbers.
    """
    loaded = load(model)
    check(loaded.vocab)
    reader, encoder = Reading(loaded, adapt), Encoder()
    content, told, size = hashlib.sha256(), hashlib.sha256(), 0
    tokens, nats = 0, 0.0

    def parts() -> Iterator[bytes]:
        nonlocal size
        while part := source.read(_READ_BYTES):
            content.update(part)
            size += len(part)
            yield part

    for ids in tokens_of(parts(), loaded.vocab):
        told.update(b"".join(map(loaded.vocab.token_bytes, ids)))
        done = 0
        for chunk in reader.read(ids):
            assert chunk.log_probs_TV is not None
            end = done + len(chunk.scores)
            encoder.encode(np.array(ids[done:end], np.int32), chunk.log_probs_TV)
            nats, done = nats - chunk.scores.total, end
        tokens += len(ids)
        progress(size, None)
    if told.digest() != content.digest():
        raise CompressionError("the model's vocabulary does not give these bytes back")
    header = Header(
        kind=KINDS.index(adapt),
        content=content.digest()[: headers.DIGEST],
        size=size,
        tokens=tokens,
        model=loaded.checkpoint.name,
        **_identity(loaded, adapt),
    )
    return Summary(size, headers.write(sink, header, encoder.data()), nats / math.log(2))


def decompress(
    source: IO[bytes],
    sink: IO[bytes],
    *,
    model: str | Path | None = None,
    progress: Progress = lambda done, of: None,
) -> int:
    """Write what a compressed file holds; how many bytes that is. If this raises, drop them.

    ``model`` may be left out where it is a shipped one. Raises CompressionError for a file that is damaged or
    was made by another model, calibration or arithmetic; the rest as :func:`compress`.
    """
    header, coded = headers.read(source)
    if header.kind >= len(KINDS) or header.tokens > header.size:  # no token is empty
        raise CompressionError("the file is damaged")
    loaded, kind = _model_of(header, model), KINDS[header.kind]
    _check_identity(header, _identity(loaded, kind))
    content, size = hashlib.sha256(), 0
    tokens = islice(_decoded(Reading(loaded, kind), coded), header.tokens)
    while part := b"".join(map(loaded.vocab.token_bytes, islice(tokens, _TOKENS_AT_ONCE))):
        content.update(part)
        sink.write(part)
        size += len(part)
        progress(size, header.size)
    if size != header.size or content.digest()[: headers.DIGEST] != header.content:
        raise CompressionError(
            "what was decompressed is not what was compressed: this machine computes other numbers"
        )
    return size


def _decoded(reader: Reading, coded: bytes) -> Iterator[int]:
    """Tokens without an end; after the last one they mean nothing."""
    decoder = Decoder(coded)
    while True:
        token = decoder.decode(reader.next())
        yield token
        reader.observe(token)


def _model_of(header: Header, model: str | Path | None) -> LocalModel:
    """The model that is asked for, or the shipped one of the name: a file names no folders."""
    if model is None and header.model not in checkpoints.shipped_names():
        raise CompressionError(f"the file was compressed by the model {header.model!r}: say where that is")
    loaded = load(header.model if model is None else model)
    check(loaded.vocab)
    return loaded


def _identity(model: LocalModel, kind: str) -> dict[str, Any]:
    """What the numbers depend on, as in :class:`Header`."""
    learns = kind != "frozen"
    return {
        "fingerprint": bytes.fromhex(model.checkpoint.fingerprint)[: headers.DIGEST],
        "calibration": bytes.fromhex(model.calibrated.fingerprint if learns else "00" * 32)[: headers.DIGEST],
        "numerics": native.identity(),
    }


def _check_identity(header: Header, here: dict[str, Any]) -> None:
    if header.fingerprint != here["fingerprint"]:
        raise CompressionError(f"the file was compressed by another model, of the name {header.model!r}")
    if header.calibration != here["calibration"]:
        raise CompressionError("the file was compressed by the model with another calibration")
    if header.numerics != here["numerics"]:
        raise CompressionError(
            f"the file was compressed where numbers are {header.numerics!r}; here: {here['numerics']!r}"
        )

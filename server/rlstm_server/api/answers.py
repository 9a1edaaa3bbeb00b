"""JSON answers: units applied, columns encoded piece by piece, large ones off the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

import orjson
from starlette.responses import Response

from rlstm_server.schemas import Columns, EngineIdentity, Timings, Totals

Unit = Literal["nats", "bits", "log10"]
FACTORS: Mapping[Unit, float] = {"nats": 1.0, "bits": 1 / math.log(2), "log10": 1 / math.log(10)}
"""What a natural logarithm is multiplied by."""

INLINE_TOKENS = 512
"""An answer about fewer tokens is encoded at once; a larger one in a thread."""

PIECE = 16_384
"""Numbers encoded in one call: the encoder holds the interpreter, so a piece bounds what others wait."""

Body = Mapping[str, Any]


async def json_response(
    build: Callable[[], Body],
    *,
    tokens: int,
    timings: Timings | None = None,
    version: int | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Encode what `build` makes; `tokens` says how large it will be."""
    body = encode(build) if tokens <= INLINE_TOKENS else await asyncio.to_thread(encode, build)
    response = Response(body, status_code=status, headers=headers, media_type="application/json")
    if timings is not None:
        response.headers["server-timing"] = server_timing(timings)
    if version is not None:
        response.headers["etag"] = f'"{version}"'
    return response


def encode(build: Callable[[], Body]) -> bytes:
    """Build an answer and encode it."""
    return orjson.dumps(build())


def server_timing(timings: Timings) -> str:
    """Write a Server-Timing header: milliseconds in the queue, on the device, at the store."""
    parts = (("queue", timings.queue), ("compute", timings.compute), ("store", timings.store))
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in parts)


def identity(engine: EngineIdentity) -> dict[str, Any]:
    """Say what the numbers depend on."""
    return {
        "model": engine.model,
        "fingerprint": engine.fingerprint,
        "adaptation_fingerprint": engine.adaptation_fingerprint,
        "numerics": engine.numerics,
    }


def column(values: Iterable[Any], factor: float = 1.0) -> orjson.Fragment:
    """Encode one column as a JSON array, each number multiplied by `factor`."""
    iterator = iter(values)
    pieces = []
    while piece := list(islice(iterator, PIECE)):
        scaled = piece if factor == 1.0 else [value * factor for value in piece]
        pieces.append(orjson.dumps(scaled)[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


def column_fields(columns: Columns, unit: Unit) -> dict[str, Any]:
    """Lay out the per-token columns of an answer; what was not computed is left out."""
    factor = FACTORS[unit]
    fields: dict[str, Any] = {"ids": column(columns.ids), "logprobs": column(columns.logprobs, factor)}
    if columns.static_logprobs is not None:
        fields["static_logprobs"] = column(columns.static_logprobs, factor)
    fields |= {
        "ranks": column(columns.ranks),
        "entropies": column(columns.entropies, factor),
        "starts": column(columns.starts),
        "ends": column(columns.ends),
    }
    if columns.top is not None:
        fields["top"] = {
            "ids": column([[token for token, _ in best] for best in columns.top]),
            "logprobs": column([[logprob * factor for _, logprob in best] for best in columns.top]),
        }
    return fields


def total_fields(totals: Totals, unit: Unit) -> dict[str, Any]:
    """Lay out the sums of an answer. Static figures are None where the static weights were not run."""
    factor = FACTORS[unit]
    return {
        "logprob": totals.logprob * factor,
        "static_logprob": scaled(totals.static_logprob, factor),
        "tokens": totals.tokens,
        "bytes": totals.bytes,
        "words": totals.words,
        "unknown": totals.unknown,
        "perplexity": totals.perplexity,
        "bits_per_byte": totals.bits_per_byte,
        "static_bits_per_byte": totals.static_bits_per_byte,
        "gain": scaled(totals.gain, factor),
    }


def scaled(value: float | None, factor: float) -> float | None:
    """Multiply a figure that may not be there."""
    return None if value is None else value * factor

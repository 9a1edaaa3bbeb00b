"""Sessions, and what was done to them, laid out as JSON objects."""

from __future__ import annotations

import math
from typing import Any

from rlstm_server.api.answers import FACTORS, Unit, column_fields, identity, scaled, total_fields
from rlstm_server.schemas import (
    AppendAnswer,
    CreatedSession,
    RankedCandidate,
    SessionInfo,
    SessionSnapshot,
    SessionTotals,
)


def append_fields(answer: AppendAnswer, unit: Unit) -> dict[str, Any]:
    """Lay out what an append did."""
    fields: dict[str, Any] = {
        "version": answer.version,
        "position": answer.position,
        "durability": answer.durability,
        "replayed": answer.replayed,
        "unit": unit,
    }
    if answer.columns is not None:
        fields |= column_fields(answer.columns, unit)
    fields |= {
        "learn": answer.learn,
        "updates": answer.updates,
        "guards": answer.guards,
        "weights": answer.weights,
    }
    fields |= {"norm_ratio": answer.norm_ratio, "pending": answer.pending}
    if answer.totals is not None:
        fields["totals"] = total_fields(answer.totals, unit)
    return fields | {"expires_at": answer.expires_at}


def ranked_fields(ranked: RankedCandidate, unit: Unit) -> dict[str, Any]:
    """Lay out one candidate."""
    factor = FACTORS[unit]
    return {
        "id": ranked.id,
        "logprob": ranked.logprob * factor,
        "static_logprob": scaled(ranked.static_logprob, factor),
        "gain": scaled(ranked.gain, factor),
        "tokens": ranked.tokens,
        "score": ranked.score,
        "static_score": ranked.static_score,
        "rank": ranked.rank,
        "static_rank": ranked.static_rank,
    }


def session_fields(info: SessionInfo) -> dict[str, Any]:
    """Lay out a session."""
    return {
        "id": info.id,
        "name": info.name,
        "model": info.model,
        "fingerprint": info.fingerprint,
        "adaptation_fingerprint": info.adaptation_fingerprint,
        "version": info.version,
        "position": info.position,
        "pending": info.pending,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "state_bytes": info.state_bytes,
        "adaptation": info.adaptation,
        "weights": info.weights,
        "norm_ratio": info.norm_ratio,
        "totals": _session_totals(info.totals),
        "metadata": dict(info.metadata),
        "learning": info.learning,
        "forked_from": info.forked_from,
        "approx": info.approx,
    }


def made_fields(made: CreatedSession) -> dict[str, Any]:
    """Lay out a new session, and which numbers are its."""
    numbers = {"numerics": None} if made.identity is None else identity(made.identity)
    document = session_fields(made.info) | numbers
    return document | {"durability": made.durability, "replayed": made.replayed}


def snapshot_fields(snapshot: SessionSnapshot) -> dict[str, Any]:
    """Lay out a named snapshot."""
    return {
        "name": snapshot.name,
        "version": snapshot.version,
        "position": snapshot.position,
        "created_at": snapshot.created_at,
        "state_bytes": snapshot.state_bytes,
        "totals": _session_totals(snapshot.totals),
    }


def _session_totals(totals: SessionTotals) -> dict[str, Any]:
    return {
        "tokens": totals.tokens,
        "bytes": totals.bytes,
        "static_bits": _bits(totals.static_nats),
        "adapted_bits": _bits(totals.adapted_nats),
        "gain": _bits(totals.gain),
        "updates": totals.updates,
        "guards": totals.guards,
    }


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / math.log(2)

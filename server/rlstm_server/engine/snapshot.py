"""A session's state, and the bytes that it is stored as.

    sealed value = seal(header length (4, little-endian) | header (JSON) | tensors (safetensors))

The header holds what is no tensor: the kind and size of the fast weights, the adapter's counters and pending
tokens, the watch over them, the sums over the session's life, and the place in its text. A state that was
stored and opened again gives the same scores, bit for bit.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load, save

from rlstm_model.adaptation.adapter import AdaptedState, Adapter, NonFiniteState, StateMismatch
from rlstm_model.adaptation.watch import Watch
from rlstm_server.engine.messages import AdaptationChoice, SessionInfo, SessionTotals
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.text import START, Place
from rlstm_server.errors import InvalidField, ModelMismatch, StateCorrupt
from rlstm_server.store.base import Head, Position, SessionKey
from rlstm_server.store.sealing import Seal, seal, unseal

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionState:
    """Everything that a session's history has made of it.

    choice      how it learns, from its creation to its end
    watch       over a single expert that learns beside the static row; of no meaning for others
    norm_ratio  of the fast weights to the slow ones, when the state was last committed
    """

    adapted: AdaptedState
    choice: AdaptationChoice
    totals: SessionTotals
    place: Place = START
    watch: Watch = field(default_factory=Watch)
    norm_ratio: float = 0.0

    @classmethod
    def before_text(cls, adapter: Adapter, choice: AdaptationChoice) -> "SessionState":
        """The state of a new session."""
        return cls(
            adapted=adapter.start(rate_scale=choice.rate_scale, static=choice.static, experts=choice.experts),
            choice=choice,
            totals=SessionTotals(static_nats=0.0 if choice.static else None),
        )


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What was said when the session was made: it does not depend on the text."""

    name: str | None
    created_at_ms: int
    ttl_ms: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionCopy:
    """One replica's copy of a session, and whose it is and at which place of its history."""

    key: SessionKey
    position: Position
    state: SessionState
    facts: SessionFacts

    @property
    def nbytes(self) -> int:
        """Bytes that the copy keeps in memory, but for small change."""
        return self.state.adapted.nbytes


class Snapshots:
    """Packs and opens the states of one served model."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    def pack(self, key: SessionKey, version: int, state: SessionState) -> bytes:
        """Seal the state of `key` at `version`. Raises StateCorrupt for a value that is not finite."""
        tensors = state.adapted.tensors()
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise StateCorrupt("the new state holds a value that is not finite")
        header = {
            "kind": state.choice.kind,
            "coordinates": state.choice.coordinates,
            "adapted": state.adapted.header(),
            "watch": asdict(state.watch),
            "norm_ratio": state.norm_ratio,
            "totals": asdict(state.totals),
            "place": asdict(state.place),
        }
        try:
            text = json.dumps(header, allow_nan=False).encode()
        except ValueError as error:
            raise StateCorrupt("the new state's sums are not finite") from error
        payload = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, save(tensors)))
        return seal(self._seal(key, version), payload)

    def open(self, key: SessionKey, version: int, value: bytes) -> SessionState:
        """The state that was packed. Raises StateCorrupt, ModelMismatch."""
        payload = unseal(value, self._seal(key, version)).payload
        start = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        try:
            header = json.loads(payload[_LENGTH_BYTES:start])
            tensors = {name: tensor.to(self._served.device) for name, tensor in load(payload[start:]).items()}
            adapter = self._served.adapter(header["kind"], header["coordinates"])
            adapted, place = adapter.restore(tensors, header["adapted"]), header["place"]
            return SessionState(
                adapted=adapted,
                choice=AdaptationChoice.of(adapter.config, adapted.lineup, adapted.rate_scale),
                totals=SessionTotals(**header["totals"]),
                place=replace(Place(**place), unfinished=tuple(place["unfinished"])),
                watch=Watch(**header["watch"]),
                norm_ratio=header["norm_ratio"],
            )
        except InvalidField as error:
            raise ModelMismatch("the model has no rule for the session's kind of fast weights") from error
        except NonFiniteState as error:
            raise StateCorrupt("the stored state holds a value that is not finite") from error
        except (StateMismatch, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise StateCorrupt("the stored state cannot be read") from error

    def _seal(self, key: SessionKey, version: int) -> Seal:
        return Seal.of(
            key,
            version,
            fingerprint=self._served.fingerprint,
            adaptation_fingerprint=self._served.adaptation_fingerprint or "",
            numerics=self._served.numerics,
        )


def describe(state: SessionState, facts: SessionFacts, state_bytes: int) -> bytes:
    """Write what a listing shows; `session_info` reads it."""
    info = {
        "position": state.adapted.position,
        "state_bytes": state_bytes,
        "adaptation": asdict(state.choice),
        "weights": state.adapted.weights,
        "norm_ratio": state.norm_ratio,
        "totals": asdict(state.totals),
        "pending": len(state.place.pending),
        "metadata": facts.metadata,
    }
    return json.dumps(info).encode()


def info_of(copy: SessionCopy, state_bytes: int, expires_at_ms: int) -> SessionInfo:
    """Describe a copy that is at the head."""
    return SessionInfo(
        id=copy.key.session_id,
        name=copy.facts.name,
        version=copy.position.version,
        position=copy.state.adapted.position,
        created_at=copy.facts.created_at_ms / 1000,
        expires_at=expires_at_ms / 1000,
        state_bytes=state_bytes,
        adaptation=copy.state.choice,
        weights=copy.state.adapted.weights,
        norm_ratio=copy.state.norm_ratio,
        totals=copy.state.totals,
        pending=len(copy.state.place.pending),
        metadata=copy.facts.metadata,
    )


def session_info(session_id: str, head: Head) -> SessionInfo:
    """Read a head's description. Raises StateCorrupt when it is none."""
    info = _parse(head)
    try:
        return SessionInfo(
            id=session_id,
            name=head.name,
            version=head.version,
            position=info["position"],
            created_at=head.created_at_ms / 1000,
            expires_at=head.expires_at_ms / 1000,
            state_bytes=info["state_bytes"],
            adaptation=adaptation_choice(info["adaptation"]),
            weights=tuple(info["weights"]),
            norm_ratio=info["norm_ratio"],
            totals=SessionTotals(**info["totals"]),
            pending=info["pending"],
            metadata=info["metadata"],
        )
    except (KeyError, TypeError) as error:
        raise StateCorrupt("the session's description lacks a field") from error


def adaptation_choice(fields: Mapping[str, Any]) -> AdaptationChoice:
    """Read a choice that was written as JSON. Raises KeyError or TypeError when it is none."""
    return AdaptationChoice(**{**fields, "rates": tuple(fields["rates"])})


def session_facts(head: Head) -> SessionFacts:
    """What was said when the session was made. Raises StateCorrupt when the head's description is none."""
    return SessionFacts(
        name=head.name,
        created_at_ms=head.created_at_ms,
        ttl_ms=head.ttl_ms,
        metadata=_parse(head).get("metadata", {}),
    )


def _parse(head: Head) -> dict[str, Any]:
    try:
        info = json.loads(head.info)
    except ValueError as error:
        raise StateCorrupt("the session's description cannot be read") from error
    if not isinstance(info, dict):
        raise StateCorrupt("the session's description is no object")
    return info

"""What is said of a session beside its tensors: the facts of its creation, and its description in the store.

A head carries the description as JSON, so that a listing shows a session without opening its state.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.snapshot_policy import Lead
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import AdaptationChoice, Ancestor, SessionInfo, SessionTotals
from rlstm_server.store.base import Head, Position, SessionKey


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What was said when the session was made, or since: it does not depend on the text.

    learning     whether appends may learn
    forked_from  of a fork, or of an import: where its history began
    """

    name: str | None
    created_at_ms: int
    ttl_ms: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    forked_from: Ancestor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionCopy:
    """One replica's copy of a session, and whose it is and at which place of its history.

    lead  over the base that the store would rebuild it from
    """

    key: SessionKey
    position: Position
    state: SessionState
    facts: SessionFacts
    lead: Lead = field(default_factory=Lead)

    @property
    def nbytes(self) -> int:
        """Bytes that the copy keeps in memory, but for small change."""
        return self.state.adapted.nbytes


def describe(state: SessionState, facts: SessionFacts, state_bytes: int) -> bytes:
    """Write what a listing shows; `session_info` reads it."""
    info = {
        "model": state.served.name,
        "fingerprint": state.served.fingerprint,
        "adaptation_fingerprint": state.served.adaptation_fingerprint,
        "position": state.adapted.position,
        "state_bytes": state_bytes,
        "adaptation": asdict(state.choice),
        "weights": state.adapted.weights,
        "norm_ratio": state.norm_ratio,
        "totals": asdict(state.totals),
        "pending": len(state.place.pending),
        "metadata": facts.metadata,
        "approx": state.approx,
        "learning": facts.learning,
        "forked_from": None if facts.forked_from is None else asdict(facts.forked_from),
    }
    return json.dumps(info).encode()


def info_of(copy: SessionCopy, state_bytes: int, expires_at_ms: int) -> SessionInfo:
    """Describe a copy that is at the head."""
    return SessionInfo(
        id=copy.key.session_id,
        name=copy.facts.name,
        model=copy.state.served.name,
        fingerprint=copy.state.served.fingerprint,
        adaptation_fingerprint=copy.state.served.adaptation_fingerprint,
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
        learning=copy.facts.learning,
        forked_from=copy.facts.forked_from,
        approx=copy.state.approx,
    )


def session_info(session_id: str, head: Head) -> SessionInfo:
    """Read a head's description. Raises StateCorrupt when it is none."""
    info = _parse(head)
    try:
        return SessionInfo(
            id=session_id,
            name=head.name,
            model=_noted(info, "model"),
            fingerprint=_noted(info, "fingerprint"),
            adaptation_fingerprint=_noted(info, "adaptation_fingerprint"),
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
            learning=info.get("learning", True),
            forked_from=ancestor(info.get("forked_from")),
            approx=info.get("approx", False),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorrupt("the session's description lacks a field") from error


def adaptation_choice(fields: Mapping[str, Any]) -> AdaptationChoice:
    """Read a choice that was written as JSON. Raises KeyError or TypeError when it is none."""
    return AdaptationChoice(**{**fields, "rates": tuple(fields["rates"])})


def ancestor(fields: Mapping[str, Any] | None) -> Ancestor | None:
    """Read an ancestor that was written as JSON. Raises TypeError when it is none."""
    return None if fields is None else Ancestor(**fields)


def session_facts(head: Head) -> SessionFacts:
    """What was said of the session. Raises StateCorrupt when the head's description is none."""
    info = _parse(head)
    try:
        return SessionFacts(
            name=head.name,
            created_at_ms=head.created_at_ms,
            ttl_ms=head.ttl_ms,
            metadata=info.get("metadata", {}),
            learning=info.get("learning", True),
            forked_from=ancestor(info.get("forked_from")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorrupt("the session's description has a wrong field") from error


def _noted(info: Mapping[str, Any], name: str) -> str | None:
    """A text that was not always written. Raises TypeError when it is none."""
    value = info.get(name)
    if not (value is None or isinstance(value, str)):
        raise TypeError(name)
    return value


def _parse(head: Head) -> dict[str, Any]:
    try:
        info = json.loads(head.info)
    except (ValueError, RecursionError) as error:
        raise StateCorrupt("the session's description cannot be read") from error
    if not isinstance(info, dict):
        raise StateCorrupt("the session's description is no object")
    return info

"""A session's state, and the bytes that it is stored and exported as.

    export        safetensors; its metadata hold, as JSON under `rlstm`, all that is no tensor
    stored state  magic (8) | checksum (32) | the same

The JSON says whose state it is (model, calibration, session, version) and holds the kind and number of the
fast weights, the counters and pending tokens of the dynamic evaluator, its loss guard, the sums over the
session's life, the place in its text, and the note. A state that was stored and opened again gives the same
scores, bit for bit. The checksum is BLAKE2b-256 of all that follows it. Tensors take no more than the file
has, and are compared with the model's before anything is computed with them.

Copies of sessions in memory are an LRU by bytes. Nothing lives only there, so dropping a copy is free.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_model.adaptation.state import AdaptedState, NonFiniteState, StateMismatch, is_finite
from rlstm_model.vocab import InvalidToken
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.errors import InvalidField, StateCorrupt, TooLarge
from rlstm_server.metrics import Metrics, Tier
from rlstm_server.schemas.sessions import Ancestor, SessionTotals
from rlstm_server.schemas.text import AdaptationChoice
from rlstm_server.store.base import Revision, SessionKey

MAGIC: Final = b"RLSTMST3"
MAX_HEADER_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 32
_FRONT_BYTES: Final = len(MAGIC) + _CHECKSUM_BYTES
_METADATA: Final = "__metadata__"
_OWN: Final = "rlstm"

OVERHEAD_BYTES: Final = 64 << 10
"""What a state may have beside its tensors: mostly the text that it holds back."""

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Word = Annotated[StrictStr, Field(max_length=1024)]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a stream.

    characters   code points before it, those of `unfinished` and `pending` not counted
    pending      text that waits for more before it can become tokens
    unfinished   ids whose character is not complete yet
    """

    characters: int = 0
    pending: str = ""
    unfinished: tuple[int, ...] = ()


START: Final = Place()


class Unreadable(Exception):
    """Bytes that are no state of a served model. Nothing in the message comes from them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionState:
    """Everything that a session's history has made of it.

    served      the model that it is of
    evaluator   what its fast weights belong to
    choice      how it learns, from its creation to its end
    loss_guard  of a single expert that learns beside the frozen baseline; of no meaning for others
    norm_ratio  of the fast weights to the slow ones, when the state was last committed
    note        what the client keeps beside it
    """

    served: ServedModel
    evaluator: DynamicEvaluator
    adapted: AdaptedState
    choice: AdaptationChoice
    totals: SessionTotals
    place: Place = START
    loss_guard: LossGuard = field(default_factory=LossGuard)
    norm_ratio: float = 0.0
    note: str = ""

    @classmethod
    def before_text(cls, served: ServedModel, choice: AdaptationChoice) -> "SessionState":
        """The state of a new session."""
        evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
        return cls(
            served=served,
            evaluator=evaluator,
            adapted=evaluator.start(
                rate_scale=choice.rate_scale,
                static=choice.static,
                experts=choice.experts,
                adapt=choice.adapt,
            ),
            choice=choice,
            totals=SessionTotals(
                static_nats=0.0 if choice.static else None,
                weights_nats=0.0 if choice.expert_config.remembers else None,
                memory_nats=0.0 if choice.expert_config.remembers else None,
            ),
        )

    def measured(self, note: str | None = None) -> "SessionState":
        """As it is committed: with the norm of its fast weights, the greatest of all, and with a new note."""
        slow, delta_KP, ratio = self.evaluator.slow_norm, self.adapted.delta_KP, 0.0
        if delta_KP is not None and slow:
            ratio = float(np.linalg.norm(delta_KP.astype(np.float64), axis=1).max()) / slow
        return replace(self, norm_ratio=ratio, note=self.note if note is None else note)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and its note, which are nearly all that is stored."""
        return self.adapted.nbytes + len(self.note.encode())


class Header(BaseModel):
    """All of a state that is no tensor. `learning` and `metadata` are an exported session's."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    fingerprint: _Word
    adaptation_fingerprint: _Word
    tenant: Annotated[StrictStr, Field(pattern=r"^[a-z0-9]{0,64}$")]
    session: Annotated[StrictStr, Field(pattern=r"^[a-z0-9]{1,64}$")]
    version: _Count
    kind: _Word
    num_fast_weights: _Count
    adapted: dict[str, Any]
    loss_guard: LossGuard
    norm_ratio: float
    totals: SessionTotals
    place: Place
    note: StrictStr = ""
    learning: bool = True
    metadata: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


@dataclass(frozen=True)
class States:
    """States of the models that are served, as bytes. Raises TooLarge for one of more than `max_bytes`."""

    models: Models
    max_bytes: int

    def serialize(self, key: SessionKey, version: int, state: SessionState) -> bytes:
        """The state of `key` at `version`, to be stored. Raises StateCorrupt for one that is not finite."""
        written = write(state, tenant=key.tenant, session=key.session_id, version=version)
        check_size(_FRONT_BYTES + len(written), self.max_bytes, state.choice)
        return b"".join((MAGIC, _checksum(written), written))

    def deserialize(self, key: SessionKey, version: int, value: bytes) -> SessionState:
        """The state that was serialized for `key` at `version`. Raises StateCorrupt, ModelMismatch."""
        content = memoryview(value)[_FRONT_BYTES:]
        if value[: len(MAGIC)] != MAGIC or not content:
            raise StateCorrupt("the stored state has an unknown form")
        if _checksum(content) != value[len(MAGIC) : _FRONT_BYTES]:
            raise StateCorrupt("the stored state fails its checksum")
        try:
            header, state = read(bytes(content), self.models)
        except Unreadable as error:
            raise StateCorrupt(f"the stored state cannot be used: {error}") from error
        stated = {"tenant": header.tenant, "session": header.session, "version": header.version}
        actual = {"tenant": key.tenant, "session": key.session_id, "version": version}
        for name, value_of in actual.items():
            if stated[name] != value_of:
                raise StateCorrupt(f"the stored state names another {name}")
        return state


def check_size(size: int, limit: int, choice: AdaptationChoice) -> None:
    """Raise TooLarge for a state that is larger than a commit may be; the setting is named."""
    if size > limit:
        kind = f"{choice.kind} of {choice.num_fast_weights:,} with {choice.experts} experts"
        raise TooLarge(f"bytes of a session's state, {kind} (RLSTM_LIMITS__STATE_BYTES)", size, limit)


def write(state: SessionState, **about: Any) -> bytes:
    """A state as safetensors. Raises StateCorrupt for a value that is not finite."""
    arrays = state.adapted.arrays()
    if not all(is_finite(array) for array in arrays.values()):
        raise StateCorrupt("the new state holds a value that is not finite")
    served = state.served
    fields = {
        "fingerprint": served.fingerprint,
        "adaptation_fingerprint": served.identity.adaptation_fingerprint or "",
        **about,
        "kind": state.choice.kind,
        "num_fast_weights": state.choice.num_fast_weights,
        "adapted": state.adapted.header(),
        "loss_guard": asdict(state.loss_guard),
        "norm_ratio": state.norm_ratio,
        "totals": asdict(state.totals),
        "place": asdict(state.place),
        **({"note": state.note} if state.note else {}),  # unknown to servers of before
    }
    try:
        text = json.dumps(fields, allow_nan=False)
    except ValueError as error:
        raise StateCorrupt("the new state's sums are not finite") from error
    return save(arrays, metadata={_OWN: text})


def read(data: bytes, models: Models) -> tuple[Header, SessionState]:
    """The state that was written. Raises Unreadable, ModelMismatch."""
    header = _header(data)
    served = models.with_identity(header.fingerprint, header.adaptation_fingerprint)
    try:
        evaluator = served.evaluator(header.kind, header.num_fast_weights)  # type: ignore[arg-type]
        adapted = evaluator.state_schema.restore(load(data), header.adapted)
        served.vocab.validate(header.place.unfinished)
        choice = AdaptationChoice.of(evaluator.calibration.config, adapted.expert_config, adapted.rate_scale)
    except NonFiniteState:
        raise Unreadable("it holds a value that is not finite") from None
    except SafetensorError:
        raise Unreadable("its tensors are not whole") from None
    except (StateMismatch, InvalidField, InvalidToken, KeyError, ValueError, TypeError):
        raise Unreadable("it does not fit the model") from None
    sums, rows = header.totals, adapted.expert_config
    parts = [sums.static_nats is not None, sums.weights_nats is not None, sums.memory_nats is not None]
    if parts != [rows.static, rows.remembers, rows.remembers]:
        raise Unreadable("its sums do not fit it")
    return header, SessionState(
        served=served,
        evaluator=evaluator,
        adapted=adapted,
        choice=choice,
        totals=header.totals,
        place=header.place,
        loss_guard=header.loss_guard,
        norm_ratio=header.norm_ratio,
        note=header.note,
    )


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()


def _header(data: bytes) -> Header:
    """All that is no tensor. Raises Unreadable, also for a count below zero or beyond 64 bits."""
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if not _LENGTH_BYTES < start <= min(len(data), MAX_HEADER_BYTES):
        raise Unreadable("it has no header")
    try:
        header = Header.model_validate_json(json.loads(data[_LENGTH_BYTES:start])[_METADATA][_OWN])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("its header cannot be read") from None
    for part in (header.totals, header.loss_guard, header.place):
        for number in vars(part).values():
            if isinstance(number, int) and not 0 <= number < 1 << 63:
                raise Unreadable("it has a count that is none")
    return header


# ---- copies in memory --------------------------------------------------------------------------------------


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
    """One replica's copy of a session, and whose it is and at which revision."""

    key: SessionKey
    revision: Revision
    state: SessionState
    facts: SessionFacts


@dataclass(eq=False)
class SessionCache:
    """The copies used last that fit into `max_bytes` of the memory `tier`. Each says whose it is."""

    max_bytes: int
    metrics: Metrics
    tier: Tier = "host"
    _copies: "OrderedDict[SessionKey, SessionCopy]" = field(default_factory=OrderedDict)
    _bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all copies together."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, key: SessionKey) -> SessionCopy | None:
        """The copy of `key`, which becomes the most recently used; None when there is none."""
        copy = self._copies.get(key)
        if copy is not None:
            self._copies.move_to_end(key)
        return copy

    def put(self, copy: SessionCopy) -> None:
        """Keep a copy in place of an older one of the same session; the least recently used go first.

        A copy larger than the whole cache is not kept.
        """
        self._remove(copy.key)
        if copy.state.nbytes <= self.max_bytes:
            self._copies[copy.key] = copy
            self._bytes += copy.state.nbytes
        while self._bytes > self.max_bytes:
            self._remove(next(iter(self._copies)))
            self.metrics.evictions.labels(self.tier).inc()
        self.metrics.sessions.labels(self.tier).set(len(self._copies))

    def drop(self, key: SessionKey) -> None:
        """Forget the copy of `key`, if there is one."""
        self._remove(key)
        self.metrics.sessions.labels(self.tier).set(len(self._copies))

    def check(self) -> None:
        """Raise ValueError unless every copy is filed under its own key and the bytes add up."""
        for key, copy in self._copies.items():
            if copy.key != key:
                raise ValueError("a copy is filed under another session's key")
        total = sum(copy.state.nbytes for copy in self._copies.values())
        if total != self._bytes:
            raise ValueError(f"the copies have {total} bytes, the books say {self._bytes}")

    def _remove(self, key: SessionKey) -> None:
        copy = self._copies.pop(key, None)
        self._bytes -= 0 if copy is None else copy.state.nbytes

"""Exports: a session as one signed file, and back.

In its envelope (:mod:`rlstm_server.engine.envelope`) a file has a header in JSON, and tensors as safetensors.
It belongs to its tenant, its model and the calibration. Nothing is allocated before the names, shapes and
types of all tensors are those that its model has. A file is written a piece at a time, as it is read.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from rlstm_model.adaptation.adapted_state import ExpertConfig, StateSchema
from rlstm_model.adaptation.evaluator import AdaptedState, DynamicEvaluator, NonFiniteState, StateMismatch
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_model.vocab import InvalidToken
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.envelope import MAX_HEADER_BYTES, Export, ExportKeys, Signed, write_envelope
from rlstm_server.engine.models import Models
from rlstm_server.engine.requests import MAX_PENDING, MAX_RATE_SCALE, check_metadata, within
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import SessionState, fields_of, pieces_of
from rlstm_server.engine.text import Place
from rlstm_server.errors import ImportRejected, InputError, InvalidField, ModelMismatch
from rlstm_server.schemas import AdaptationChoice, Ancestor, SessionTotals

PIECE_BYTES: Final = 256 << 10
_TENSORS_LENGTH_BYTES: Final = 8
_ROUNDING: Final = 1.001
"""What a norm may be beyond its bound, when it is taken in another order."""

_DTYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}

_Parsed = TypeVar("_Parsed")
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Word = Annotated[StrictStr, Field(max_length=1024)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _Totals(_Strict):
    tokens: _Count
    bytes: _Count
    adapted_nats: float
    static_nats: float | None
    updates: _Count
    guards: _Count


class _Watch(_Strict):
    excess: float
    segment: float
    frozen: _Count
    freeze: Annotated[int, Field(ge=1, lt=1 << 63)]


class _Place(_Strict):
    characters: _Count
    pending: str
    unfinished: list[_Count]


class _State(_Strict):
    kind: _Word
    num_fast_weights: _Count
    adapted: dict[str, Any]
    watch: _Watch
    norm_ratio: float
    totals: _Totals
    place: _Place
    approx: bool


class _Header(_Strict):
    tenant: _Word
    fingerprint: _Word
    adaptation_fingerprint: _Word
    numerics: _Word
    session: Annotated[StrictStr, Field(pattern=r"^[a-z0-9]{1,64}$")]
    version: _Count
    learning: bool
    metadata: dict[str, str | int | float | bool | None]
    bytes: _Count
    state: _State


class _Tensor(_Strict):
    dtype: _Word
    shape: list[_Count]
    data_offsets: Annotated[list[_Count], Field(min_length=2, max_length=2)]


_TENSORS: Final[TypeAdapter[dict[str, _Tensor]]] = TypeAdapter(dict[str, _Tensor])


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportSpec:
    """What a file has to fit: the tenant it is to be imported for, and one of the served models."""

    tenant: str
    models: Models


class Exported(NamedTuple):
    """A session as a file has it."""

    state: SessionState
    ancestor: Ancestor
    learning: bool
    metadata: Mapping[str, Any]


def write_export(copy: SessionCopy, keys: ExportKeys) -> Export:
    """Write a session as a file, a piece at a time, from the tensors themselves.

    Raises TooLarge for more text held back than a header can have.
    """
    served, tensors = copy.state.served, _in_order(copy.state)
    front = _tensors_header(tensors)
    size = len(front) + sum(tensor.nbytes for tensor in tensors.values())
    header = _Header(
        tenant=_tenant_digest(copy.key.tenant),
        fingerprint=served.fingerprint,
        adaptation_fingerprint=served.adaptation_fingerprint or "",
        numerics=served.numerics,
        session=copy.key.session_id,
        version=copy.position.version,
        learning=copy.facts.learning,
        metadata=dict(copy.facts.metadata),
        bytes=size,
        state=_State.model_validate(fields_of(copy.state), strict=False),
    )
    text = header.model_dump_json().encode()
    within("bytes of the export's header", len(text), MAX_HEADER_BYTES)
    return write_envelope(text, size, _pieces(front, copy.state), keys)


def read_session(signed: Signed, spec: ExportSpec) -> Exported:
    """The session in a file that was signed here. Raises ImportRejected."""
    header = _parsed(TypeAdapter(_Header), signed.header)
    if header.tenant != _tenant_digest(spec.tenant):
        raise ImportRejected("the file is no export of yours")
    try:
        served = spec.models.with_identity(header.fingerprint, header.adaptation_fingerprint)
    except ModelMismatch as error:
        raise ImportRejected(error.detail) from None
    if header.bytes != len(signed.tensors):
        raise ImportRejected("the tensors have not the length that the header states")
    try:
        check_metadata(header.metadata)
    except InputError:
        raise ImportRejected("the metadata are too long, or no text") from None
    return Exported(
        state=replace(
            _read_state(header.state, signed.tensors, served),
            approx=header.state.approx or header.numerics != served.numerics,
        ),
        ancestor=Ancestor(session=header.session, version=header.version),
        learning=header.learning,
        metadata=header.metadata,
    )


def _read_state(stored: _State, tensors: memoryview, served: ServedModel) -> SessionState:
    try:
        evaluator = served.evaluator(stored.kind, stored.num_fast_weights)  # type: ignore[arg-type]
        adapted = _read_adapted(evaluator, stored, tensors)
        served.vocab.validate(stored.place.unfinished)
        choice = AdaptationChoice.of(evaluator.config, adapted.expert_config, adapted.rate_scale)
    except NonFiniteState:
        raise ImportRejected("the state holds a value that is not finite") from None
    except (StateMismatch, SafetensorError, InvalidField, InvalidToken, ValueError, TypeError):
        raise ImportRejected("the state does not fit the model") from None
    norm_ratio = served.norm_ratio(choice, adapted)
    if adapted.rate_scale > MAX_RATE_SCALE or not norm_ratio <= evaluator.config.max_norm_ratio * _ROUNDING:
        raise ImportRejected("the state is out of bounds")
    if len(stored.place.pending) > MAX_PENDING:
        raise ImportRejected("the state holds back more text than a session may")
    if (stored.totals.static_nats is None) == adapted.expert_config.static:
        raise ImportRejected("the sums do not fit the state")
    return SessionState(
        served=served,
        adapted=adapted,
        choice=choice,
        totals=SessionTotals(**stored.totals.model_dump()),
        place=Place(
            characters=stored.place.characters,
            pending=stored.place.pending,
            unfinished=tuple(stored.place.unfinished),
        ),
        watch=LossGuard(**stored.watch.model_dump()),
        norm_ratio=norm_ratio,
    )


def _read_adapted(evaluator: DynamicEvaluator, stored: _State, tensors: memoryview) -> AdaptedState:
    expert_config = ExpertConfig(
        experts=_required(stored.adapted, "experts"), static=_required(stored.adapted, "static")
    )
    _check_layout(evaluator.state_schema, expert_config, bool(stored.adapted.get("pending")), tensors)
    device = evaluator.model.embedding.input.device
    loaded: dict[str, Tensor] = load(bytes(tensors))
    return evaluator.restore({name: tensor.to(device) for name, tensor in loaded.items()}, stored.adapted)


def _check_layout(
    shape: StateSchema, expert_config: ExpertConfig, pending: bool, tensors: memoryview
) -> None:
    """Raise ImportRejected unless the tensors are the model's, one behind the other, and nothing else."""
    start = _TENSORS_LENGTH_BYTES + int.from_bytes(tensors[:_TENSORS_LENGTH_BYTES], "little")
    if not _TENSORS_LENGTH_BYTES < start <= min(len(tensors), MAX_HEADER_BYTES):
        raise ImportRejected("the tensors have no header")
    stored = _parsed(_TENSORS, bytes(tensors[_TENSORS_LENGTH_BYTES:start]))
    layout = shape.layout(expert_config, pending=pending)
    if not set(layout) - {"delta"} <= set(stored) <= set(layout):
        raise ImportRejected("the tensors are not those of the model")
    at = 0
    for name, tensor in sorted(stored.items(), key=lambda named: named[1].data_offsets):
        size, dtype = layout[name]
        stop = at + dtype.itemsize * torch.Size(size).numel()
        found = (tuple(tensor.shape), tensor.dtype, tensor.data_offsets)
        if found != (size, _DTYPES.get(dtype), [at, stop]):
            raise ImportRejected("a tensor has not the shape or type that the model has")
        at = stop
    if start + at != len(tensors):
        raise ImportRejected("the tensors have not the length that the model has")


def _parsed(schema: TypeAdapter[_Parsed], text: bytes) -> _Parsed:
    try:
        return schema.validate_json(text)
    except ValidationError:
        raise ImportRejected("a header cannot be read") from None


def _required(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise StateMismatch(f"the header lacks {name}")
    return fields[name]


def _in_order(state: SessionState) -> dict[str, Tensor]:
    """The tensors as they lie in the file: those of wide numbers first, so that each is aligned."""
    named = state.adapted.tensors().items()
    return dict(sorted(named, key=lambda one: (-one[1].element_size(), one[0])))


def _tensors_header(tensors: Mapping[str, Tensor]) -> bytes:
    """What safetensors begins with: where each tensor lies behind it, known before any byte is read."""
    at, entries = 0, {}
    for name, tensor in tensors.items():
        place = [at, at + tensor.nbytes]
        entries[name] = _Tensor(dtype=_DTYPES[tensor.dtype], shape=[*tensor.shape], data_offsets=place)
        at += tensor.nbytes
    text = _TENSORS.dump_json(entries)
    text += b" " * (-len(text) % _TENSORS_LENGTH_BYTES)
    return len(text).to_bytes(_TENSORS_LENGTH_BYTES, "little") + text


def _pieces(front: bytes, state: SessionState) -> Iterator[bytes]:
    """The bytes of the tensors. This holds the state until they are read: memory of no state is zeroed."""
    yield front
    for tensor in _in_order(state).values():
        for piece in pieces_of(tensor, PIECE_BYTES):
            yield piece.view(torch.uint8).numpy().tobytes()


def _tenant_digest(tenant: str) -> str:
    return hashlib.sha256(b"rlstm tenant\0" + tenant.encode()).hexdigest()

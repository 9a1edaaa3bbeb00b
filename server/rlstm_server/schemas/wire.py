"""How requests are read and answers are written.

A request is a pydantic model of the fields of its body. An answer is a frozen dataclass whose fields say, by
the marks below, how they stand in JSON. All numbers are kept in nats; units are applied here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, auto
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
)
from pydantic.fields import ComputedFieldInfo, FieldInfo
from pydantic_core import CoreSchema

from rlstm_server.caller import Call

Unit = Literal["nats", "bits", "log10"]
FACTORS: Final[Mapping[Unit, float]] = {"nats": 1.0, "bits": 1 / math.log(2), "log10": 1 / math.log(10)}
"""What a natural logarithm is multiplied by."""

PIECE: Final = 16_384
"""Numbers that are written in one call, which holds the interpreter: others wait meanwhile."""

MAX_METADATA: Final = 32

SHORT: Final = 2_048
"""Numbers of a column that is encoded with the whole answer."""

UnitField = Annotated[Unit, Field(description="Of every log-probability, entropy and gain in the answer.")]

# ---- requests ---------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """Part of a request: no conversion of types, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Request(Strict):
    """A request: the fields of its body and, once `by` has told it, who asks."""

    _call: Call = PrivateAttr()

    def by(self, call: Call) -> Self:
        """Give the request as it is made by this call."""
        self._call = call
        return self

    @property
    def call(self) -> Call:
        """Who asks, and how."""
        return self._call


ModelField = Annotated[
    str | None,
    Field(min_length=1, max_length=256, description="Of those that `/info` names; default: the first."),
]
TextField = Annotated[
    Annotated[str, Field(min_length=1)] | None, Field(description="Text. Give this or `tokens`.")
]
Ids = Annotated[list[int], Field(fail_fast=True)]
"""Of a million ids that are none the first is told: every list of a request is read so."""

TokensField = Annotated[
    Annotated[Ids, Field(min_length=1)] | None,
    Field(description="Ids of the model's vocabulary. Give this or `text`."),
]
MinVersionField = Annotated[int | None, Field(ge=0, lt=2**63, description="Refuse (412) an older session.")]


def _with_all_digits(value: Any) -> Any:
    """Refuse an integer beyond 64 bits, which the schema would take as the nearest double."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer is one of 64 bits; write a longer one as a string")
    return value


MetadataValue = Annotated[
    Annotated[str, Field(max_length=512)]
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | float
    | bool
    | None,
    BeforeValidator(_with_all_digits),
]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue], Field(max_length=MAX_METADATA)
]

# ---- answers ----------------------------------------------------------------------------------------------


class Mark(Enum):
    """How a field of an answer stands in JSON."""

    LOG = auto()
    """A natural logarithm, written in the answer's unit."""
    BITS = auto()
    """A natural logarithm, written in bits."""
    COLUMN = auto()
    """An array of an entry a token: long, and encoded in pieces."""
    FLAT = auto()
    """Its own fields stand in its place."""
    HIDDEN = auto()
    """Not written."""
    OPTIONAL = auto()
    """Left out where it is None."""


LOG, BITS, COLUMN, FLAT, HIDDEN, OPTIONAL = Mark


@dataclass(frozen=True)
class _Part:
    attribute: str
    name: str
    marks: frozenset[Mark]


class Answer:
    """Base of frozen dataclasses that are written as JSON objects, and documented so."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Document what `laid_out` writes."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        written, required = dict[str, Any](), list[str]()
        kind: Any = cls
        for part in _parts(kind):
            known = schema["properties"].get(part.name)
            if FLAT in part.marks:
                inner = handler.resolve_ref_schema(next(_references(known)))
                written |= inner["properties"]
                required += inner.get("required", []) if OPTIONAL not in part.marks else []
            elif HIDDEN not in part.marks:
                known.pop("readOnly", None)
                written[part.name] = _without_null(known) if OPTIONAL in part.marks else known
                required += [part.name] if OPTIONAL not in part.marks else []
        schema["properties"], schema["required"] = written, required
        schema["additionalProperties"] = False
        return reference


def _references(schema: Any) -> Iterator[Any]:
    """Give the schema that refers to another, within one that may also be null."""
    return (one for one in (schema, *schema.get("anyOf", ()), *schema.get("allOf", ())) if "$ref" in one)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Say what stands there where something does."""
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds} if kinds else rest


@cache
def _parts(schema: type) -> tuple[_Part, ...]:
    """Give the fields of an answer and what it computes, in order."""
    hints = get_type_hints(schema, include_extras=True)
    found = {field.name: hints[field.name] for field in fields(schema)} if is_dataclass(schema) else {}
    names: dict[str, str] = {}
    for name, value in vars(schema).items():
        info = getattr(value, "decorator_info", None)
        if isinstance(info, ComputedFieldInfo):
            found[name] = get_type_hints(info.wrapped_property.fget, include_extras=True)["return"]
            names[name] = info.alias or name
    return tuple(_part(name, hint, names.get(name)) for name, hint in found.items())


def _part(attribute: str, hint: Any, name: str | None) -> _Part:
    metadata = getattr(hint, "__metadata__", ())
    aliases = [one.serialization_alias for one in metadata if isinstance(one, FieldInfo)]
    name = name or next((alias for alias in aliases if alias is not None), attribute)
    return _Part(attribute, name, frozenset(one for one in metadata if isinstance(one, Mark)))


def laid_out(answer: Answer, unit: Unit = "nats") -> dict[str, Any]:
    """Lay an answer out as a JSON object, with all logarithms in this unit."""
    factor = FACTORS[unit]
    written: dict[str, Any] = {}
    kind: Any = type(answer)
    for part in _parts(kind):
        marks = part.marks
        if HIDDEN in marks:
            continue
        value = getattr(answer, part.attribute)
        if value is None:
            if OPTIONAL not in marks:
                written[part.name] = None
        elif FLAT in marks:
            written |= laid_out(value, unit)
        elif COLUMN in marks:
            written[part.name] = column(value, factor if LOG in marks else 1.0)
        elif LOG in marks:
            written[part.name] = value * factor
        elif BITS in marks:
            written[part.name] = value / math.log(2)
        elif isinstance(value, Answer):
            written[part.name] = laid_out(value, unit)
        elif isinstance(value, (tuple, list)) and value and isinstance(value[0], Answer):
            written[part.name] = [laid_out(one, unit) for one in value]
        else:
            written[part.name] = unit if part.name == "unit" else value
    return written


def column(values: Iterable[Any], factor: float = 1.0) -> list[Any] | orjson.Fragment:
    """Lay out one column, each number, or each of each row, multiplied by `factor`; a long one is encoded."""
    iterator = iter(values)
    pieces: list[bytes] = []
    while piece := list(islice(iterator, PIECE)):
        scaled = piece if factor == 1.0 else [_scaled(value, factor) for value in piece]
        if not pieces and len(piece) <= SHORT:
            return scaled
        pieces.append(orjson.dumps(scaled)[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


def _scaled(value: float | Sequence[float], factor: float) -> Any:
    return value * factor if isinstance(value, float) else [number * factor for number in value]

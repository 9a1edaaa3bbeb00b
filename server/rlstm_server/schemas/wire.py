"""How requests are read and answers are written.

A request is a pydantic model of the fields of its body. An answer is a frozen dataclass whose fields say, by
the serializers below, how they stand in JSON. All numbers are kept in nats; units are applied here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self, cast, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    TypeAdapter,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import wrap_serializer_function_ser_schema

from rlstm_server.caller import Call

Unit = Literal["nats", "bits", "log10"]
FACTORS: Final[Mapping[Unit, float]] = {"nats": 1.0, "bits": 1 / math.log(2), "log10": 1 / math.log(10)}
"""What a natural logarithm is multiplied by."""

PIECE: Final = 16_384
"""Numbers that are written in one call, which holds the interpreter: others wait meanwhile."""

MAX_METADATA: Final = 32

SHORT: Final = 2_048
"""Numbers of a column that is encoded with the whole answer."""

# ---- requests ---------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """Part of a request: no conversion of types, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Request(Strict):
    """A request: the fields of its body and, once `by` has told it, who asks."""

    _call: Call = PrivateAttr()

    def by(self, call: Call) -> Self:
        """Give the request as it is made by this call; this one stays as it is."""
        made = self.model_copy()
        made._call = call
        return made

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


def _plain(value: Any) -> Any:
    """Refuse what is no plain value, and an integer that the schema would take as the nearest double."""
    if not isinstance(value, str | int | float | None):
        raise ValueError("a value is a text, a number, true, false or null")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer is one of 64 bits; write a longer one as a string")
    return value


MetadataValue = Annotated[
    Annotated[str, Field(max_length=512)]
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | float
    | bool
    | None,
    BeforeValidator(_plain),
]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue], Field(max_length=MAX_METADATA)
]

# ---- answers ----------------------------------------------------------------------------------------------


class Answer:
    """Base of frozen dataclasses that are written as JSON objects, and documented so.

    All logarithms are natural ones until `laid_out` writes them; written without a unit they stay so.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Write the fields of a part that is flat in its place."""
        schema, flat = handler(source), _flat(source)

        def written(answer: Any, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
            fields: dict[str, Any] = {}
            for name, value in write(answer).items():
                fields |= value if name in flat else {name: value}
            return fields

        serialized = {**schema, "serialization": wrap_serializer_function_ser_schema(written)}
        return cast("CoreSchema", serialized) if flat else schema

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Document what is written."""
        reference = handler(core_schema)
        schema, flat = handler.resolve_ref_schema(reference), _flat(cls)
        fields = core_schema["schema"]["fields"]
        may_lack = {
            each.get("serialization_alias", each["name"]): "serialization_exclude_if" in each
            for each in fields
        }
        written, required = dict[str, Any](), list[str]()
        for name, known in schema["properties"].items():
            is_there = not may_lack.get(name)
            known.pop("readOnly", None)
            if name in flat:
                inner = handler.resolve_ref_schema(known if is_there else _without_null(known))
                written |= inner["properties"]
                required += inner.get("required", []) if is_there else []
            else:
                written[name] = known if is_there else _without_null(known)
                required += [name] if is_there else []
        schema |= {"properties": written, "required": [*dict.fromkeys(required)]}
        schema["additionalProperties"] = False
        return reference


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Say what stands there where something does."""
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds} if kinds else rest


FLAT: Final = "flat"
"""Marks a field whose own fields stand in its place."""

HIDDEN: Final = Field(exclude=True)
OPTIONAL: Final = Field(exclude_if=lambda value: value is None)
"""Left out where it is None."""

COLUMN: Final = PlainSerializer(lambda values: column(values), when_used="unless-none")
"""An array of an entry a token: long, and encoded in pieces."""

LOG: Final = PlainSerializer(
    lambda value, info: scaled(value, FACTORS[info.context or "nats"]), when_used="unless-none"
)
"""A natural logarithm, or a column of such, written in the answer's unit."""

BITS: Final = PlainSerializer(
    lambda value, info: value if info.context is None else value / math.log(2), when_used="unless-none"
)
"""A natural logarithm, written in bits."""

UnitField = Annotated[
    Unit,
    PlainSerializer(lambda unit, info: info.context or unit),
    Field(description="Of every log-probability, entropy and gain in the answer."),
]


def _flat(kind: type) -> frozenset[str]:
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if FLAT in getattr(hint, "__metadata__", ()))


_adapter = cache(TypeAdapter[Any])


def laid_out(answer: Answer, unit: Unit = "nats") -> dict[str, Any]:
    """Lay an answer out as a JSON object, with all logarithms in this unit."""
    kind: Any = type(answer)
    written: dict[str, Any] = _adapter(kind).dump_python(answer, by_alias=True, context=unit)
    return written


def scaled(value: float | Iterable[Any], factor: float) -> Any:
    """Multiply a number, or each number of a column."""
    return value * factor if isinstance(value, int | float) else column(value, factor)


def column(values: Iterable[Any], factor: float = 1.0) -> list[Any] | orjson.Fragment:
    """Lay out one column, each number, or each of each row, multiplied by `factor`; a long one is encoded."""
    iterator = iter(values)
    pieces: list[bytes] = []
    while piece := list(islice(iterator, PIECE)):
        written = piece if factor == 1.0 else [scaled(value, factor) for value in piece]
        if not pieces and len(piece) <= SHORT:
            return written
        pieces.append(orjson.dumps(written)[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")

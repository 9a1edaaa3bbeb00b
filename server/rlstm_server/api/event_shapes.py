"""What the streams of `generate` are made of, for the OpenAPI document: events and their data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from rlstm_server.api.shapes import ProblemOut, Shape, UnitField

SCHEMAS = "#/components/schemas/"


class UsageOut(Shape):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenEventOut(Shape):
    """The next token of a choice, and the text that it completes: none in the middle of a character."""

    index: int = Field(description="Of the choice.")
    step: int = Field(description="How many tokens of the choice came before.")
    id: int
    text: str
    logprob: float | None = Field(
        default=None, description="Of the raw distribution; absent if not asked for."
    )


class EndEventOut(Shape):
    """The end of a choice."""

    index: int = Field(description="Of the choice.")
    finish_reason: str = Field(description="`stop`: a stop string; `length`: max_tokens.")
    usage: UsageOut
    seed: int
    unit: UnitField
    version: int | None = Field(default=None, description="Of the session that keeps the text.")
    position: int | None = None
    durability: str | None = None
    replayed: bool | None = None


EVENT_SHAPES: Mapping[str, type[BaseModel]] = {
    "token": TokenEventOut,
    "end": EndEventOut,
    "error": ProblemOut,
}
"""The data of each kind of event."""


def data_schemas() -> dict[str, Any]:
    """Give the schemas of all data by name: no route answers with one of them alone."""
    _, schemas = models_json_schema(
        [(shape, "serialization") for shape in EVENT_SHAPES.values()], ref_template=SCHEMAS + "{model}"
    )
    return dict(schemas["$defs"])


def event_schema() -> dict[str, Any]:
    """Document one event of a stream."""
    return {"oneOf": [_event_schema(event, shape.__name__) for event, shape in EVENT_SHAPES.items()]}


def _event_schema(event: str, shape: str) -> dict[str, Any]:
    content = {"$ref": SCHEMAS + shape}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    return {"type": "object", "properties": {"event": {"const": event}, "data": data}}

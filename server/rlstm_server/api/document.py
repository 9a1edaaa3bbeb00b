"""The OpenAPI document: what FastAPI writes, and what it cannot know of this interface: events and frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI
from pydantic import Field, RootModel, TypeAdapter

from rlstm_server.api.bodies import SCHEMAS, Problem
from rlstm_server.api.limits import OPEN_PATHS
from rlstm_server.api.tracing import face_of
from rlstm_server.schemas.generation import EndEvent, TokenEvent
from rlstm_server.schemas.sessions import AppendAnswer, Frame
from rlstm_server.schemas.wire import FLAT, Answer

JSON: Final = "application/json"
KEY: Final = {"type": "http", "scheme": "bearer", "description": "A key of this server."}
EVENTS: Final[Mapping[str, type]] = {"token": TokenEvent, "end": EndEvent, "error": Problem}
"""The data of each kind of event of a stream of generated text."""


@dataclass(frozen=True, kw_only=True)
class ReadyFrame(Answer):
    """The first frame: the stream is open."""

    type: Literal["ready"] = "ready"
    stream: Annotated[str, Field(description="Its name: frames that are sent again need it.")]
    version: Annotated[int, Field(description="Of the session.")]
    position: Annotated[int, Field(description="Tokens read.")]
    window: Annotated[int, Field(description="Frames that may be under way.")]
    frame_bytes: Annotated[int, Field(description="A longer frame closes the connection, with code 1009.")]


@dataclass(frozen=True, kw_only=True)
class ScoresFrame(Answer):
    """A frame is acknowledged: it was appended, and this is what that did."""

    type: Literal["scores"] = "scores"
    seq: Annotated[int, Field(description="Of the frame.")]
    answer: Annotated[AppendAnswer, FLAT]


@dataclass(frozen=True, kw_only=True)
class ErrorFrame(Answer):
    """Why the connection is closed now, with a code of 4000 plus the status."""

    type: Literal["error"] = "error"
    seq: Annotated[int | None, Field(description="Of the frame that it is about; null for what is no frame.")]
    problem: Problem


class FrameAnswer(RootModel[Annotated[ReadyFrame | ScoresFrame | ErrorFrame, Field(discriminator="type")]]):
    """What the server sends over a WebSocket."""


class Application(FastAPI):
    """An application whose document is complete; `keyed` says whether callers must show a key."""

    def __init__(self, *, keyed: bool, **options: Any) -> None:
        super().__init__(**options)
        self._keyed = keyed

    def openapi(self) -> dict[str, Any]:
        """Give the document, written once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["schemas"] |= _unanswered()
            for path, operation in _operations(document):
                if face_of(path) == "openai":
                    operation["responses"].pop("422", None)  # FastAPI's own: here it is a 400
                _allow_no_body(operation)
                if self._keyed:
                    operation["security"] = [{"key": []}, *([{}] if path in OPEN_PATHS else [])]
            if self._keyed:
                document["components"]["securitySchemes"] = {"key": KEY}
        return super().openapi()


def _unanswered() -> dict[str, Any]:
    """Give the schemas of events and frames by name: no route takes or answers with one of them alone."""
    sent: list[Any] = [*EVENTS.values(), FrameAnswer]
    kinds: list[Any] = [(kind.__name__, "serialization", TypeAdapter(kind)) for kind in sent]
    kinds.append((Frame.__name__, "validation", TypeAdapter(Frame)))
    _, schemas = TypeAdapter.json_schemas(kinds, ref_template=SCHEMAS + "{model}")
    return dict(schemas["$defs"])


def event_schema() -> dict[str, Any]:
    """Document one event of a stream."""
    return {"oneOf": [_event_schema(event, schema.__name__) for event, schema in EVENTS.items()]}


def _event_schema(event: str, schema: str) -> dict[str, Any]:
    content = {"$ref": SCHEMAS + schema}
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": content}
    return {"type": "object", "properties": {"event": {"const": event}, "data": data}}


def frame_schema() -> dict[str, Any]:
    """Document what goes up a connection and what comes down; OpenAPI has no words of its own for it."""
    up, down = Frame.__name__, FrameAnswer.__name__
    return {"x-frames": {"up": {"$ref": SCHEMAS + up}, "down": {"$ref": SCHEMAS + down}}}


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _allow_no_body(operation: dict[str, Any]) -> None:
    """Say that a body of JSON may be left out, which counts as an empty object."""
    if JSON in operation.get("requestBody", {}).get("content", {}):
        operation["requestBody"]["required"] = False

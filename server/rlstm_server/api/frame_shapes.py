"""What the frames of `WS /sessions/{id}/stream` are made of, for the server and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, model_validator
from pydantic.json_schema import models_json_schema

from rlstm_server.api.session_shapes import AppendOut
from rlstm_server.api.shapes import ProblemOut, Shape, Strict, TextField, TokensField, one_of

SCHEMAS = "#/components/schemas/"


class FrameIn(Strict):
    """The next piece of the session's stream."""

    seq: Annotated[int, Field(ge=1, lt=2**53, description="One more than the frame before.")]
    text: TextField = None
    tokens: TokensField = None
    learn: bool = Field(default=True, description="Learn from it after scoring it.")
    final: bool = Field(default=False, description="The text ends here: score the word in progress too.")

    @model_validator(mode="after")
    def _check(self) -> FrameIn:
        one_of(self.text, self.tokens)
        return self


class ReadyFrameOut(Shape):
    """The first frame: the stream is open."""

    type: Literal["ready"]
    stream: str = Field(description="Its name: frames that are sent again need it.")
    version: int = Field(description="Of the session.")
    position: int = Field(description="Tokens read.")
    window: int = Field(description="Frames that may be under way.")
    frame_bytes: int = Field(description="A longer frame closes the connection, with code 1009.")


class ScoresFrameOut(AppendOut):
    """A frame is acknowledged: it was appended, and this is what that did."""

    type: Literal["scores"]
    seq: int = Field(description="Of the frame.")


class ErrorFrameOut(Shape):
    """Why the connection is closed now, with a code of 4000 plus the status."""

    type: Literal["error"]
    seq: int | None = Field(description="Of the frame that it is about; null for what is no frame.")
    problem: ProblemOut


class FrameOut(
    RootModel[Annotated[ReadyFrameOut | ScoresFrameOut | ErrorFrameOut, Field(discriminator="type")]]
):
    """What the server sends."""


def frame_schemas() -> dict[str, Any]:
    """Give the schemas of all frames by name: no route takes or answers with one of them alone."""
    _, schemas = models_json_schema(
        [(FrameIn, "validation"), (FrameOut, "serialization")], ref_template=SCHEMAS + "{model}"
    )
    return dict(schemas["$defs"])


def frame_schema() -> dict[str, Any]:
    """Document what goes up a connection and what comes down; OpenAPI has no words of its own for it."""
    return {"x-frames": {"up": {"$ref": SCHEMAS + "FrameIn"}, "down": {"$ref": SCHEMAS + "FrameOut"}}}

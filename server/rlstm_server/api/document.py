"""The OpenAPI document: what FastAPI writes, and what it cannot know of this interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from rlstm_server.api.event_shapes import data_schemas
from rlstm_server.api.frame_shapes import frame_schemas
from rlstm_server.api.limits import OPEN_PATHS
from rlstm_server.api.problems import MEDIA_TYPE
from rlstm_server.api.tracing import face_of

JSON = "application/json"
KEY = {"type": "http", "scheme": "bearer", "description": "A key of this server."}


class Application(FastAPI):
    """An application whose document is complete; `keyed` says whether callers must show a key."""

    def __init__(self, *, keyed: bool, **options: Any) -> None:
        super().__init__(**options)
        self._keyed = keyed

    def openapi(self) -> dict[str, Any]:
        """Give the document, written once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["schemas"] |= data_schemas() | frame_schemas()
            for path, operation in _operations(document):
                _describe_errors(path, operation)
                _allow_no_body(operation)
                if self._keyed:
                    operation["security"] = [{"key": []}, *([{}] if path in OPEN_PATHS else [])]
            if self._keyed:
                document["components"]["securitySchemes"] = {"key": KEY}
        return super().openapi()


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _describe_errors(path: str, operation: dict[str, Any]) -> None:
    """Give problem documents the media type that they are sent with."""
    if face_of(path) == "openai":
        operation["responses"].pop("422", None)  # FastAPI's own: here it is a 400
        return
    for status, response in operation["responses"].items():
        if status >= "4":
            response["content"] = {MEDIA_TYPE: response["content"][JSON]}


def _allow_no_body(operation: dict[str, Any]) -> None:
    """Say that a body of JSON may be left out, which counts as an empty object."""
    if JSON in operation.get("requestBody", {}).get("content", {}):
        operation["requestBody"]["required"] = False

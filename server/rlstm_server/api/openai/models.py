"""Models by the names that clients call them; `name:adapt` is the same one, learning from what it reads.

Here, and nowhere else, a name under `/v1` becomes a model and a way of reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Path, Response
from pydantic import Field

from rlstm_server.api.answers import json_response
from rlstm_server.api.dependencies import Services, ServicesDep
from rlstm_server.api.openai.shapes import envelopes
from rlstm_server.api.shapes import Shape
from rlstm_server.engine.served import ServedModel
from rlstm_server.errors import ModelNotFound
from rlstm_server.schemas import AdaptationRequest

ADAPT = ":adapt"
OWNER = "mogrifier-rlstm"

ModelPath = Annotated[str, Path(description="A name that `/v1/models` lists.", max_length=256)]


class Named(NamedTuple):
    """What a name stands for: a model, and how it learns from what it reads; None for not at all."""

    id: str
    served: ServedModel
    adaptation: AdaptationRequest | None


def models(services: Services) -> Mapping[str, Named]:
    """Give every name that is served, the default first."""
    found = []
    for served in services.engine.models:
        found.append(Named(served.name, served, None))
        if served.rules:
            found.append(Named(served.name + ADAPT, served, AdaptationRequest()))
    return {named.id: named for named in found}


def resolve(services: Services, model: str | None) -> Named:
    """Give what a name stands for; None is the default. Raises ModelNotFound."""
    known = models(services)
    try:
        return known[next(iter(known)) if model is None else model]
    except KeyError:
        raise ModelNotFound(f"model: no such model is served; these are: {', '.join(known)}") from None


class ModelOut(Shape):
    """One name."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix seconds at which the server started.")
    owned_by: str


class ModelsOut(Shape):
    """All names."""

    object: Literal["list"]
    data: list[ModelOut]


async def list_models(services: ServicesDep) -> Response:
    """List the models; those that end in `:adapt` learn from each prompt while they read it."""
    data = [_fields(named, services) for named in models(services).values()]
    return await json_response(lambda: {"object": "list", "data": data}, tokens=0)


async def get_model(model_id: ModelPath, services: ServicesDep) -> Response:
    """Describe one model."""
    named = resolve(services, model_id)
    return await json_response(lambda: _fields(named, services), tokens=0)


def _fields(named: Named, services: Services) -> dict[str, Any]:
    return {"id": named.id, "object": "model", "created": services.started, "owned_by": OWNER}


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(tags=["openai"])
    routes.add_api_route(
        "/v1/models",
        list_models,
        methods=["GET"],
        responses={200: {"model": ModelsOut}, **envelopes()},
        summary="List models",
    )
    routes.add_api_route(
        "/v1/models/{model_id}",
        get_model,
        methods=["GET"],
        responses={200: {"model": ModelOut}, **envelopes(404)},
        summary="Describe a model",
    )
    return routes

"""POST /v1/engines/{model}/logprob: what one text costs after another, in one number."""

from __future__ import annotations

import math
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from rlstm_server.api.answers import json_response
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, HeldDep, ServicesDep
from rlstm_server.api.openai.models import ModelPath, resolve
from rlstm_server.api.openai.shapes import Lenient, envelopes
from rlstm_server.api.openai.vocabulary import encode
from rlstm_server.api.shapes import Shape
from rlstm_server.errors import InternalError
from rlstm_server.schemas import CompletionRequest, GenerationSettings, Passage, PromptEvent


class LogprobIn(Lenient):
    """A text, and the one before it."""

    context: str = Field(default="", description="Read first; empty: the beginning of all text.")
    continuation: str = Field(min_length=1, description="Scored after it.")


class LogprobOut(Shape):
    """The continuation's sum."""

    logprob: float = Field(description="Natural logarithm, of all tokens of the continuation together.")
    is_greedy: bool = Field(description="Whether each of them is the most probable one at its place.")
    num_tokens: int = Field(description="Of the continuation.")
    input_tokens: int = Field(description="Of both texts; bos where the context is empty.")


async def logprob(
    model_id: ModelPath, body: LogprobIn, services: ServicesDep, caller: CallerDep, held: HeldDep
) -> Response:
    """Score a continuation: the same numbers as those of an echoed completion."""
    named = resolve(services, model_id)
    vocab = named.served.vocab
    held.expect(2 * len(body.context.encode()) + 2 * len(body.continuation.encode()))
    context = await encode(vocab, body.context, "context") if body.context else []
    continuation = await encode(vocab, body.continuation, "continuation")
    ids = (*(context or [vocab.bos_id]), *continuation)
    request = CompletionRequest(
        caller=caller,
        model=named.served.name,
        prompts=(Passage(tokens=ids),),
        settings=GenerationSettings(max_tokens=0),
        top=1,
        adaptation=named.adaptation,
    )
    async with aclosing(services.engine.complete(request)) as events:
        async for event in events:
            if isinstance(event, PromptEvent):
                build = partial(_fields, event, len(continuation))
                return await json_response(build, tokens=len(ids), headers=body.warning)
    raise InternalError("the prompt was never read")


def _fields(prompt: PromptEvent, count: int) -> dict[str, Any]:
    logprobs = [value for value in prompt.logprobs[-count:] if value is not None]
    best = (row[0][1] for row in prompt.top[-count:])
    return {
        "logprob": math.fsum(logprobs),
        "is_greedy": all(own >= other for own, other in zip(logprobs, best, strict=True)),
        "num_tokens": count,
        "input_tokens": prompt.tokens,
    }


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(route_class=StrictRoute, tags=["openai"])
    routes.add_api_route(
        "/v1/engines/{model_id}/logprob",
        logprob,
        methods=["POST"],
        responses={200: {"model": LogprobOut}, **envelopes(404, 415)},
        summary="Score a text after another",
    )
    return routes

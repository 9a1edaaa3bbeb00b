"""POST /v1/completions: texts continued, scored, or both. Whole here; as a stream of chunks in `chunks`."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from rlstm_server.api.answers import json_response
from rlstm_server.api.auth import Principal
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, HeldDep, PrincipalDep, ServicesDep, TraceDep
from rlstm_server.api.events import open_script
from rlstm_server.api.openai.chunks import Chunks
from rlstm_server.api.openai.models import Named, resolve
from rlstm_server.api.openai.shapes import CompletionIn, CompletionOut, envelopes
from rlstm_server.api.openai.tokens import (
    Entry,
    Names,
    id_columns,
    logprob_columns,
    prompt_entries,
    token_entries,
)
from rlstm_server.api.openai.usage import usage
from rlstm_server.engine.quotas import Caller
from rlstm_server.errors import InternalError, TooLarge
from rlstm_server.schemas import CompletionRequest, EndEvent, EngineIdentity, PromptEvent, TokenEvent

ENTRY_NUMBERS = 3
"""So many numbers' memory an entry takes beside its own and those of the alternatives: id, string, offset."""

STREAM_HEADERS = {"cache-control": "no-cache, no-store"}


async def complete(
    body: CompletionIn,
    services: ServicesDep,
    caller: CallerDep,
    principal: PrincipalDep,
    held: HeldDep,
    trace: TraceDep,
) -> Response:
    """Continue prompts, score them, or both. Nothing is kept, and a prompt knows of no other."""
    named = resolve(services, body.model)
    _check_scopes(principal, body)
    numbers = body.most_entries * (1 + body.top)
    limit = services.settings.limits.score_numbers
    if numbers > limit:
        raise TooLarge("n x tokens x (1 + logprobs) of all prompts", numbers, limit)
    held.expect(numbers + ENTRY_NUMBERS * body.most_entries)
    events = services.engine.complete(_request(body, named, caller))
    head = _head(named)
    if body.stream:
        return await open_script(
            events,
            Chunks(head, body, named.served.vocab),
            trace=trace,
            metrics=services.metrics,
            ping_seconds=services.settings.limits.ping_seconds,
            headers=STREAM_HEADERS | body.warning,
        )
    answer = _Answer(body, named)
    async with aclosing(events):
        async for event in events:
            answer.add(event)
    return await json_response(
        lambda: {**head, **answer.fields()}, tokens=answer.entries * (1 + body.top), headers=body.warning
    )


def _check_scopes(principal: Principal, body: CompletionIn) -> None:
    """Let a key score, write, or both, as it may."""
    if body.echoes_scores:
        principal.require("score")
    if body.settings.max_tokens:
        principal.require("generate")


def _request(body: CompletionIn, named: Named, caller: Caller) -> CompletionRequest:
    return CompletionRequest(
        caller=caller,
        model=named.served.name,
        prompts=body.prompt,
        settings=body.settings,
        bos=bool(body.add_special_tokens),
        top=body.top,
        adaptation=named.adaptation,
    )


def _head(named: Named) -> dict[str, Any]:
    """Give what all objects of one answer have in common."""
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": named.id,
        "system_fingerprint": fingerprint(named.served.identity, named.id),
        "logprobs_mode": "raw",
    }


def fingerprint(identity: EngineIdentity, model: str) -> str:
    """Write in short what the numbers depend on: weights, vocabulary, calibration, and how sums are taken."""
    parts = (model, identity.fingerprint, identity.adaptation_fingerprint or "", identity.numerics)
    return f"fp_{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}"


@dataclass
class _Choice:
    tokens: list[TokenEvent] = field(default_factory=list)
    end: EndEvent | None = None


class _Answer:
    """The whole answer, as its events come in."""

    def __init__(self, body: CompletionIn, named: Named) -> None:
        self._body, self._vocab = body, named.served.vocab
        self._prompts: dict[int, PromptEvent] = {}
        self._choices = [_Choice() for _ in range(len(body.prompt) * body.choices)]

    def add(self, event: PromptEvent | TokenEvent | EndEvent) -> None:
        """Take one event in."""
        if isinstance(event, PromptEvent):
            self._prompts[event.prompt] = event
        elif isinstance(event, TokenEvent):
            self._choices[event.choice].tokens.append(event)
        else:
            self._choices[event.choice].end = event

    @property
    def entries(self) -> int:
        """How many tokens are reported."""
        echoed = sum(len(prompt.ids) for prompt in self._prompts.values()) if self._body.echo else 0
        return self._body.choices * echoed + sum(len(choice.tokens) for choice in self._choices)

    def fields(self) -> dict[str, Any]:
        """Lay out choices and usage."""
        names = Names(self._vocab)
        ends = [choice.end for choice in self._choices if choice.end is not None]
        if len(ends) != len(self._choices):
            raise InternalError("the events ended before the texts did")
        choices = [
            self._fields(index, choice.tokens, end, names)
            for index, (choice, end) in enumerate(zip(self._choices, ends, strict=True))
        ]
        read = [prompt.tokens for prompt in self._prompts.values()]
        return {"choices": choices, "usage": usage(read, ends)}

    def _fields(self, index: int, tokens: list[TokenEvent], end: EndEvent, names: Names) -> dict[str, Any]:
        prompt = self._prompts[index // self._body.choices]
        echoed = prompt if self._body.echo else None
        text = "".join(token.text for token in tokens)
        if echoed is not None:
            text = echoed.text + (text if tokens else echoed.unfinished)
        fields: dict[str, Any] = {
            "index": index,
            "text": text,
            "finish_reason": end.finish_reason,
            "logprobs": None,
            "first_token": prompt.first_token,
        }
        if self._body.logprobs is not None:
            fields["logprobs"] = logprob_columns(partial(self._entries, prompt, tokens), names)
        if self._body.return_token_ids:
            ids = [*(echoed.ids if echoed else ()), *(token.id for token in tokens)]
            fields |= id_columns(ids, self._vocab)
        return fields

    def _entries(self, prompt: PromptEvent, tokens: list[TokenEvent]) -> Iterator[Entry]:
        if self._body.echo:
            yield from prompt_entries(prompt)
        yield from token_entries(tokens, len(prompt.text))


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(route_class=StrictRoute, tags=["openai"])
    answered = {
        "model": CompletionOut,
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "One object; or, with `stream`, chunks of the same shape as data of events, then"
        " `[DONE]`. What fails after the first chunk is told as `error` before it.",
    }
    routes.add_api_route(
        "/v1/completions",
        complete,
        methods=["POST"],
        responses={200: answered, **envelopes(404, 415)},
        summary="Continue or score prompts",
    )
    return routes

"""Models by the names that clients call them; `name:adapt` is the same one, learning from what it reads.

`name@session` is the model as it is in a session, which is told by its id or its name. Here, and nowhere
else, a name under `/v1` becomes a model and a way of reading. POST /tokenize, /detokenize and GET
/tokenizer_info tell of a model's tokens, for clients that count in them. No text is taken for a special
token: the string of bos and eos is that of their one id, and nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Path, Query, Response
from pydantic import Field

from rlstm_model.checkpoint import likely
from rlstm_model.vocab import Vocab
from rlstm_server.api.bodies import BODY, answers, respond, strict_routes
from rlstm_server.api.dependencies import ContextDep, RequestContext
from rlstm_server.api.openai.schemas import SESSION, Documented, envelopes
from rlstm_server.caller import Call
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.reading import Piece, read_passage
from rlstm_server.engine.requests import off_loop
from rlstm_server.errors import InvalidField, ModelNotFound
from rlstm_server.schemas.text import AdaptationRequest
from rlstm_server.schemas.wire import Ids, Strict, column

ADAPT = ":adapt"
SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")
OWNER = "mogrifier-rlstm"

NameField = Annotated[
    str | None, Field(max_length=256, description="A name that `/v1/models` lists; default: the first.")
]
ModelPath = Annotated[str, Path(description="A name that `/v1/models` lists.", max_length=256)]

routes = strict_routes("openai")


class NamedModel(NamedTuple):
    """What a name stands for: a model, and how it learns from what it reads; None for not at all.

    `session` is the id or the name of one to read in, empty for none.
    """

    id: str
    served: ServedModel
    adaptation: AdaptationRequest | None
    session: str = ""


def models(context: RequestContext) -> Mapping[str, NamedModel]:
    """Give every name that is served, the default first."""
    found = []
    for served in context.engine.models:
        found.append(NamedModel(served.name, served, None))
        if served.rules:
            found.append(NamedModel(served.name + ADAPT, served, AdaptationRequest()))
    return {named.id: named for named in found}


def resolve(context: RequestContext, model: str | None) -> NamedModel:
    """Give what a name stands for; None is the default. Raises ModelNotFound."""
    known = models(context)
    name, mark, session = (next(iter(known)) if model is None else model).partition(SESSION)
    named = known.get(name)
    if named is None or (mark and (named.adaptation or not session)):
        names = likely(name, known)
        raise ModelNotFound(f"model: no such model is served; these are: {names}; and NAME@SESSION")
    return named._replace(id=f"{name}{mark}{session}", session=session)


async def call_of(named: NamedModel, context: RequestContext) -> Call:
    """Say who asks, and for which session. Raises Forbidden, and NotFound where none has this name."""
    if not named.session:
        return context.call
    context.principal.require("sessions")
    session = named.session
    if not SESSION_ID.fullmatch(session):
        session = await context.engine.find_session(context.call.tenant, session)
    context.trace.session_id = session
    return replace(context.call, session=session)


class ModelOut(Documented):
    """One name."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix seconds at which the server started.")
    owned_by: str


class ModelsOut(Documented):
    """All names."""

    object: Literal["list"]
    data: list[ModelOut]


@routes.get("/v1/models", responses={200: {"model": ModelsOut}, **envelopes()}, summary="List models")
async def list_models(context: ContextDep) -> Response:
    """List the models; those that end in `:adapt` learn from each prompt while they read it."""
    data = [_fields(named, context) for named in models(context).values()]
    return await respond(lambda: {"object": "list", "data": data})


@routes.get(
    "/v1/models/{model_id}",
    responses={200: {"model": ModelOut}, **envelopes(404)},
    summary="Describe a model",
)
async def get_model(model_id: ModelPath, context: ContextDep) -> Response:
    """Describe one model, or a session's."""
    named = resolve(context, model_id)
    call = await call_of(named, context)
    if call.session:
        await context.engine.session_info(call)
    return await respond(lambda: _fields(named, context))


def _fields(named: NamedModel, context: RequestContext) -> dict[str, Any]:
    return {"id": named.id, "object": "model", "created": context.services.started, "owned_by": OWNER}


class TokenizeIn(Strict):
    """A text."""

    model: NameField = None
    prompt: str
    add_special_tokens: bool = Field(default=False, description="Put bos before it.")


class TokenizeOut(Documented):
    """Its ids."""

    count: int
    tokens: list[int]


class DetokenizeIn(Strict):
    """Ids."""

    model: NameField = None
    tokens: Ids


class DetokenizeOut(Documented):
    """Their text."""

    prompt: str


class TokenizerOut(Documented):
    """What a client must know of the vocabulary."""

    model: str
    kind: str
    vocab_size: int
    bos_token: str
    bos_token_id: int
    eos_token: str
    eos_token_id: int
    pad_token: str | None
    add_bos_token: bool = Field(description="Whether bos is read before a text that does not ask for it.")


@routes.post("/tokenize", responses=answers(200, TokenizeOut, 404, *BODY), summary="Text to ids")
async def tokenize(body: TokenizeIn, context: ContextDep) -> Response:
    """Give a text's ids."""
    vocab = resolve(context, body.model).served.vocab
    context.held.expect(len(body.prompt.encode()))
    ids = await encode(vocab, body.prompt, "prompt") if body.prompt else []
    ids = [vocab.bos_id, *ids] if body.add_special_tokens else ids
    return await respond(lambda: {"count": len(ids), "tokens": column(ids)}, tokens=len(ids))


@routes.post("/detokenize", responses=answers(200, DetokenizeOut, 404, *BODY), summary="Ids to text")
async def detokenize(body: DetokenizeIn, context: ContextDep) -> Response:
    """Give the text of ids. Refused where they are no whole text: it could not become the same ids again."""
    vocab = resolve(context, body.model).served.vocab
    context.held.expect(len(body.tokens))
    text = await off_loop(len(body.tokens), lambda: _text(vocab, body.tokens)) if body.tokens else ""
    return await respond(lambda: {"prompt": text}, tokens=len(body.tokens))


@routes.get(
    "/tokenizer_info",
    responses=answers(200, TokenizerOut, 404, 422),
    summary="Describe the vocabulary",
)
async def tokenizer_info(
    context: ContextDep,
    model: Annotated[str | None, Query(max_length=256, description="Default: the first.")] = None,
) -> Response:
    """Describe a model's vocabulary."""
    named = resolve(context, model)
    return await respond(lambda: _info(named.id, named.served.vocab))


async def encode(vocab: Vocab, text: str, field: str) -> list[int]:
    """Give a text's ids, without holding others up. Raises InvalidText."""
    return (await off_loop(len(text), lambda: read_passage(vocab, text, field))).ids


def _text(vocab: Vocab, ids: list[int]) -> str:
    piece: Piece = read_passage(vocab, ids, "")
    joined = b"".join(map(vocab.token_bytes, ids))
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidField("tokens", f"tokens: they are no text: not UTF-8 at byte {error.start:,}") from None
    return piece.text


def _info(model: str, vocab: Vocab) -> dict[str, Any]:
    return {
        "model": model,
        "kind": vocab.kind,
        "vocab_size": vocab.size,
        "bos_token": vocab.token_bytes(vocab.bos_id).decode(),
        "bos_token_id": vocab.bos_id,
        "eos_token": vocab.token_bytes(vocab.eos_id).decode(),
        "eos_token_id": vocab.eos_id,
        "pad_token": None,
        "add_bos_token": False,
    }

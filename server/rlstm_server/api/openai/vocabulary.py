"""POST /tokenize and /detokenize, GET /tokenizer_info: a model's tokens, for clients that count in them.

No text is taken for a special token: the string of bos and eos is that of their one id, and nothing else is.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from rlstm_model.vocab import Vocab
from rlstm_server.api.answers import column, json_response
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import HeldDep, ServicesDep
from rlstm_server.api.openai.models import resolve
from rlstm_server.api.shapes import BODY, Ids, Shape, Strict, problems
from rlstm_server.engine.requests import off_loop
from rlstm_server.engine.text import Piece, read_passage
from rlstm_server.errors import InvalidField
from rlstm_server.schemas import Passage

ModelField = Annotated[
    str | None, Field(max_length=256, description="A name that `/v1/models` lists; default: the first.")
]


class TokenizeIn(Strict):
    """A text."""

    model: ModelField = None
    prompt: str
    add_special_tokens: bool = Field(default=False, description="Put bos before it.")


class TokenizeOut(Shape):
    """Its ids."""

    count: int
    tokens: list[int]


class DetokenizeIn(Strict):
    """Ids."""

    model: ModelField = None
    tokens: Ids


class DetokenizeOut(Shape):
    """Their text."""

    prompt: str


class TokenizerOut(Shape):
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


async def tokenize(body: TokenizeIn, services: ServicesDep, held: HeldDep) -> Response:
    """Give a text's ids."""
    vocab = resolve(services, body.model).served.vocab
    held.expect(len(body.prompt.encode()))
    ids = await encode(vocab, body.prompt, "prompt") if body.prompt else []
    ids = [vocab.bos_id, *ids] if body.add_special_tokens else ids
    return await json_response(lambda: {"count": len(ids), "tokens": column(ids)}, tokens=len(ids))


async def detokenize(body: DetokenizeIn, services: ServicesDep, held: HeldDep) -> Response:
    """Give the text of ids. Refused where they are no whole text: it could not become the same ids again."""
    vocab = resolve(services, body.model).served.vocab
    held.expect(len(body.tokens))
    text = await off_loop(len(body.tokens), lambda: _text(vocab, body.tokens)) if body.tokens else ""
    return await json_response(lambda: {"prompt": text}, tokens=len(body.tokens))


async def tokenizer_info(
    services: ServicesDep,
    model: Annotated[str | None, Query(max_length=256, description="Default: the first.")] = None,
) -> Response:
    """Describe a model's vocabulary."""
    named = resolve(services, model)
    return await json_response(lambda: _info(named.id, named.served.vocab), tokens=0)


async def encode(vocab: Vocab, text: str, field: str) -> list[int]:
    """Give a text's ids, without holding others up. Raises InvalidText."""
    return (await off_loop(len(text), lambda: read_passage(vocab, Passage(text=text), field))).ids


def _text(vocab: Vocab, ids: list[int]) -> str:
    piece: Piece = read_passage(vocab, Passage(tokens=tuple(ids)), "")
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


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(route_class=StrictRoute, tags=["openai"])
    posts: tuple[tuple[str, Any, type[Shape], str], ...] = (
        ("/tokenize", tokenize, TokenizeOut, "Text to ids"),
        ("/detokenize", detokenize, DetokenizeOut, "Ids to text"),
    )
    for path, handler, shape, summary in posts:
        routes.add_api_route(
            path,
            handler,
            methods=["POST"],
            responses={200: {"model": shape}, **problems(404, *BODY)},
            summary=summary,
        )
    routes.add_api_route(
        "/tokenizer_info",
        tokenizer_info,
        methods=["GET"],
        responses={200: {"model": TokenizerOut}, **problems(404, 422)},
        summary="Describe the vocabulary",
    )
    return routes

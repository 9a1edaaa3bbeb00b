"""POST /score: log-probabilities of texts, each on its own; optionally learning inside each text."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from rlstm_model.vocab import Vocab
from rlstm_server.api.answers import FACTORS, column_fields, identity, json_response, total_fields
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, HeldDep, ServicesDep
from rlstm_server.api.shapes import (
    BODY,
    AdaptationIn,
    AdaptationOut,
    ColumnsOut,
    GuardsField,
    IdentityOut,
    Ids,
    ModelField,
    Shape,
    Strict,
    TextField,
    TokensField,
    TotalsOut,
    UnitField,
    one_of,
    passage,
    problems,
)
from rlstm_server.api.words import byte_column, word_rows
from rlstm_server.engine.quotas import Caller
from rlstm_server.errors import TooLarge
from rlstm_server.schemas import ItemScores, Passage, ScoreAnswer, ScoreItem, ScoreRequest

MAX_TOP = 100

ContextField = Annotated[str, Field(description="Read before the text and scored against; not reported.")]
ContextTokensField = Annotated[Ids, Field(description="The same as ids; not together with `context`.")]


class ItemIn(Strict):
    """One text, or its ids."""

    id: str | None = Field(
        default=None, max_length=128, description="Comes back with the scores; default: its index."
    )
    text: TextField = None
    tokens: TokensField = None
    context: ContextField = ""
    context_tokens: ContextTokensField = Field(default=[])

    @model_validator(mode="after")
    def _check(self) -> ItemIn:
        one_of(self.text, self.tokens)
        if self.context and self.context_tokens:
            raise ValueError("give either context or context_tokens")
        return self

    def score_item(self, index: int) -> ScoreItem:
        """Give the engine's form."""
        return ScoreItem(
            id=str(index) if self.id is None else self.id,
            passage=passage(self.text, self.tokens),
            context=self._context(),
        )

    def _context(self) -> Passage | None:
        if self.context:
            return Passage(text=self.context)
        return Passage(tokens=tuple(self.context_tokens)) if self.context_tokens else None

    @property
    def most_tokens(self) -> int:
        """An upper bound of the tokens in text and context: no vocabulary has more tokens than bytes."""
        given = (self.text or "", self.context)
        texts = sum(len(text if text.isascii() else text.encode("utf-8")) for text in given)
        return texts + len(self.tokens or ()) + len(self.context_tokens)


class ScoreIn(Strict):
    """Up to 256 items; or, in short, the fields of one item in their place."""

    items: Annotated[list[ItemIn], Field(fail_fast=True)] | None = Field(
        default=None, min_length=1, description="The texts to score."
    )
    text: TextField = None
    tokens: TokensField = None
    context: ContextField = ""
    context_tokens: ContextTokensField = Field(default=[])
    model: ModelField = None
    unit: UnitField = "nats"
    scores: Literal["totals", "tokens"] = Field(
        default="tokens", description="Per-token columns, or sums only."
    )
    words: bool = Field(
        default=False, description="Also sums over words. The white space before a word belongs to that word."
    )
    top: int = Field(
        default=0, ge=0, le=MAX_TOP, description="Most probable alternatives to report at each token."
    )
    adapt: bool = Field(default=False, description="Learn inside each item, from the base weights.")
    adaptation: AdaptationIn | None = Field(default=None, description="How; implies `adapt`.")

    @model_validator(mode="after")
    def _check(self) -> ScoreIn:
        if self.items is None:
            one_of(self.text, self.tokens)
            _ = self.the_items  # checked here, beside the event loop
        elif self.text is not None or self.tokens is not None or self.context or self.context_tokens:
            raise ValueError("give either items, or text or tokens")
        return self

    @cached_property
    def the_items(self) -> list[ItemIn]:
        """Give the items, one for the short form."""
        if self.items is not None:
            return self.items
        return [
            ItemIn(
                text=self.text,
                tokens=self.tokens,
                context=self.context,
                context_tokens=self.context_tokens,
            )
        ]

    def request(self, caller: Caller) -> ScoreRequest:
        """Give the engine's form."""
        adaptation = self.adaptation or (AdaptationIn() if self.adapt else None)
        return ScoreRequest(
            caller=caller,
            model=self.model,
            items=tuple(item.score_item(index) for index, item in enumerate(self.the_items)),
            top=self.top,
            adaptation=adaptation.request() if adaptation else None,
        )


class WordOut(Shape):
    """One word's sum. The white space before a word belongs to it; trailing white space is an entry."""

    start: int
    end: int
    tokens: int = Field(description="How many of them start in the word.")
    logprob: float
    static_logprob: float | None = None


class ItemOut(ColumnsOut):
    """One item's scores."""

    id: str
    first_token: Literal["bos", "context", "session"] = Field(description="What token 0 was scored against.")
    bytes: list[list[int] | None] | None = Field(
        default=None, description="Of each token that is not valid UTF-8 by itself; absent where all are."
    )
    words: list[WordOut] | None = None
    totals: TotalsOut
    updates: int = Field(description="Segments learned from inside the item.")
    guards: GuardsField


class ScoreOut(IdentityOut):
    """The items in the order they were given."""

    unit: UnitField
    adaptation: AdaptationOut | None = Field(
        default=None, description="How the items were learned from; absent where they were not."
    )
    items: list[ItemOut]


async def score(body: ScoreIn, services: ServicesDep, caller: CallerDep, held: HeldDep) -> Response:
    """Score texts. Log-probabilities are of the raw distribution: finite, at most 0, at least -9999 nats."""
    held.expect(_numbers(body, services.settings.limits.score_numbers))
    served = services.engine.models.named(body.model)
    answer = await services.engine.score(body.request(caller))

    def fields() -> dict[str, Any]:
        document: dict[str, Any] = identity(served.identity) | {"unit": body.unit}
        if answer.adaptation is not None:
            document["adaptation"] = answer.adaptation
        return document | {"items": [_item_fields(item, body, served.vocab) for item in answer.items]}

    return await json_response(
        fields,
        tokens=_tokens(answer) * (1 + body.top),
        timings=answer.timings,
    )


def _numbers(body: ScoreIn, limit: int) -> int:
    """Bound items x tokens x alternatives before anything of that size is made."""
    numbers = sum(item.most_tokens for item in body.the_items) * (1 + body.top)
    if numbers > limit:
        raise TooLarge("tokens x (1 + top) of all items", numbers, limit)
    return numbers


def _tokens(answer: ScoreAnswer) -> int:
    return sum(item.totals.tokens for item in answer.items)


def _item_fields(item: ItemScores, body: ScoreIn, vocab: Vocab) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": item.id, "first_token": item.first_token}
    if body.scores == "tokens":
        fields |= column_fields(item.columns, body.unit)
        partial = byte_column(item.columns.ids, vocab)
        if partial is not None:
            fields["bytes"] = partial
    if body.words:
        fields["words"] = word_rows(item.text, item.columns, FACTORS[body.unit])
    totals = {"totals": total_fields(item.totals, body.unit)}
    return fields | totals | {"updates": item.updates, "guards": item.guards}


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(route_class=StrictRoute, tags=["score"])
    routes.add_api_route(
        "/score",
        score,
        methods=["POST"],
        responses={200: {"model": ScoreOut}, **problems(404, *BODY)},
        summary="Score texts",
    )
    return routes

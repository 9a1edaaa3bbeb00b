"""Nouns of scoring and of generation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rlstm_model.sampling import SamplingConfig
from rlstm_server.engine.messages.adaptation import AdaptationChoice, AdaptationRequest
from rlstm_server.engine.messages.shared import Caller, Columns, Passage, Timings, Totals

FirstToken = Literal["bos", "context", "session"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class ScoreItem:
    """One text to score; the context comes before it and is not reported."""

    id: str
    passage: Passage
    context: Passage | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score items, each on its own. With ``adaptation`` each also learns, from the base weights."""

    caller: Caller
    items: tuple[ScoreItem, ...]
    top: int = 0
    adaptation: AdaptationRequest | None = None


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """One item's answer. ``text`` is the item's text (decoded when tokens were given): spans refer to it.

    ``guards`` counts what was kept from happening, by name.
    """

    id: str
    first_token: FirstToken
    text: str
    columns: Columns
    totals: Totals
    updates: int
    guards: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ScoreAnswer:
    """The items in the order they were given, and how they were learned from, if they were."""

    items: tuple[ItemScores, ...]
    adaptation: AdaptationChoice | None
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to continue a text.

    max_tokens  at most so many new tokens a choice
    seed        None draws one; the same seed gives the same text
    choices     how many continuations (always 1 in a session)
    stop        strings that end the text; they are not part of it
    """

    max_tokens: int
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int | None = None
    choices: int = 1
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Continue a prompt; an empty one means the beginning of a text."""

    caller: Caller
    prompt: Passage
    settings: GenerationSettings


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One new token. ``text`` is what it completes: empty in the middle of a character.

    ``mark`` names the event to a reader who may want to go on after it; None where nobody can.
    """

    choice: int
    index: int
    id: int
    text: str
    logprob: float
    mark: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """One choice is complete. ``version`` and ``position`` are set where the text was kept in a session."""

    choice: int
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seed: int
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False


GenerationEvent: TypeAlias = TokenEvent | EndEvent

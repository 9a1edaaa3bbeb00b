"""Nouns of scoring and of generation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rlstm_model.sampling import SamplingConfig
from rlstm_server.engine.messages.adaptation import AdaptationChoice, AdaptationRequest
from rlstm_server.engine.messages.shared import Caller, Columns, EngineIdentity, Passage, Timings, Totals

FirstToken = Literal["bos", "context", "session", "unscored"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class ScoreItem:
    """One text to score; the context comes before it and is not reported."""

    id: str
    passage: Passage
    context: Passage | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score items, each on its own. With ``adaptation`` each also learns, from the base weights.

    ``model`` None is the server's first, here as in all requests.
    """

    caller: Caller
    model: str | None = None
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
    model: str | None = None
    prompt: Passage
    settings: GenerationSettings


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One new token. ``text`` is what it completes: empty in the middle of a character.

    ``top`` are the most probable ids at its place, best first, where they were asked for. ``mark`` names the
    event to a reader who may want to go on after it; None where nobody can.
    """

    choice: int
    index: int
    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    mark: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """One choice is complete. ``version`` and ``position`` are set where the text was kept in a session.

    ``identity`` is that of a session's model; None where the request names the model, and of a text that was
    kept before with one that is not served here.
    """

    choice: int
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seed: int
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False
    identity: EngineIdentity | None = None


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """Read prompts, score them, and continue each, from the weights as loaded.

    prompts     an empty text is the beginning of all text
    bos         whether it comes before all others too; without it a prompt's first token is not scored
    top         how many alternatives are told of each token
    settings    `max_tokens` may be 0: nothing is written then
    adaptation  learns from each prompt as it is read, and not from what is written
    """

    caller: Caller
    model: str | None = None
    prompts: tuple[Passage, ...]
    settings: GenerationSettings
    bos: bool = False
    top: int = 0
    adaptation: AdaptationRequest | None = None


@dataclass(frozen=True, kw_only=True)
class PromptEvent:
    """A prompt was read. Its columns have an entry for each of its tokens.

    prompt      which one
    tokens      how many were read, bos included
    unfinished  what its last ids read as when nothing completes their character; not in ``text``
    starts      code points of ``text``
    logprobs    None for a first token that nothing is scored against
    """

    prompt: int
    tokens: int
    text: str
    unfinished: str
    first_token: FirstToken
    ids: tuple[int, ...]
    starts: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


GenerationEvent: TypeAlias = TokenEvent | EndEvent
CompletionEvent: TypeAlias = PromptEvent | GenerationEvent
"""Choice k of prompt p is numbered p x choices + k."""

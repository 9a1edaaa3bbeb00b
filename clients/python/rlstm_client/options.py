"""The keyword arguments of the larger calls, written once for both clients and for type checkers.

What is left out keeps the server's default. ``unit`` is "nats", "bits" or "log10" and holds for every number
of the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from rlstm_client.models import Kind, Scores, Unit


class AdaptationOptions(TypedDict, total=False):
    """How to learn, of `score` and of `sessions.create`; `info` says what there is."""

    kind: Kind  # what may change: of the rules that the model has
    num_fast_weights: int  # and how many numbers that is
    experts: Literal[1, 2, 4]  # learning rates that are mixed, the static one included
    rate_scale: float  # multiplies the calibrated learning rate, 0 to 10
    static: bool  # whether the weights as loaded read along; several experts need them


class ScoreOptions(TypedDict, total=False):
    """Of `score`."""

    model: str  # of those that the server has; left out, its first
    items: Sequence[Mapping[str, Any]]  # each: text or tokens, and where wanted id and context
    tokens: Sequence[int]  # instead of a text
    context: str  # scored against, not reported
    context_tokens: Sequence[int]  # instead of a context
    unit: Unit
    scores: Scores
    words: bool  # sums and spans of words
    top: int  # that many alternatives a token
    adapt: bool  # learn inside the item, from the base weights
    adaptation: AdaptationOptions  # how; implies adapt


class SamplingOptions(TypedDict, total=False):
    """Of every `generate`."""

    max_tokens: int
    temperature: float  # 0 is greedy
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int  # same seed, same text
    stop: str | Sequence[str]
    logprobs: bool
    unit: Unit


class GenerateOptions(SamplingOptions, total=False):
    """Of `generate` without a session."""

    model: str  # of those that the server has; left out, its first
    tokens: Sequence[int]  # a prompt of ids instead of a text
    n: int  # choices


class SessionGenerateOptions(SamplingOptions, total=False):
    """Of a session's `generate`."""

    commit: bool  # keep the text in the session
    learn_from_output: bool
    min_version: int  # refuse an older session
    idempotency_key: str  # of a generation that is kept
    if_match: int  # likewise


class CreateOptions(TypedDict, total=False):
    """Of `sessions.create`."""

    model: str  # of those that the server has; left out, its first
    name: str  # unique among your live sessions
    adaptation: AdaptationOptions
    ttl_seconds: float
    metadata: Mapping[str, Any]
    text: str  # the first append; its answer is `Session.created.append`
    tokens: Sequence[int]  # instead of a text
    scores: Scores  # of the first append, as unit
    unit: Unit
    idempotency_key: str


class StreamAppendOptions(TypedDict, total=False):
    """Of `append_stream`, for every piece."""

    learn: bool
    scores: Scores
    unit: Unit


class AppendOptions(StreamAppendOptions, total=False):
    """Of `append`."""

    final: bool  # flush the word in progress (vocabularies of words)
    if_match: int  # the version the session has to be at
    idempotency_key: str  # names the whole text: repeat the append with it


class UpdateOptions(TypedDict, total=False):
    """Of `update`; what is left out stays as it is."""

    ttl_seconds: float
    metadata: Mapping[str, Any]  # in place of the old ones
    learning: bool  # whether appends may learn
    if_match: int
    idempotency_key: str


class ForkOptions(TypedDict, total=False):
    """Of `fork`; what is left out is the source's, but for the name."""

    name: str  # unique among your live sessions
    snapshot: str  # the session as it was then, not as it is
    ttl_seconds: float
    metadata: Mapping[str, Any]
    min_version: int  # refuse an older session
    idempotency_key: str


class ImportOptions(TypedDict, total=False):
    """Of `sessions.import_session`."""

    name: str
    ttl_seconds: float
    idempotency_key: str


class ChangeOptions(TypedDict, total=False):
    """Of `snapshot` and `restore`."""

    if_match: int  # the version the session has to be at
    idempotency_key: str


class ResetOptions(TypedDict, total=False):
    """Of `reset`."""

    what: Literal["fast_weights", "recurrent", "both"]
    if_match: int
    idempotency_key: str

"""The keyword arguments of the larger calls, written once: for both clients, type checkers, and the commands.

What is left out keeps the server's default. ``unit`` holds for every number of the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from rlstm_client.models import Adapt, Kind, Scores, Unit

UnitOption = Annotated[Unit, "Of every log-probability."]
Model = Annotated[str, "Of those that the server has; default: its first."]
Name = Annotated[str, "A name of your own, unique among your live sessions."]
Seconds = Annotated[float, "Expire when unused so long."]
Note = Annotated[str, "A text of yours, kept with this change; `Session.note` gives it back."]
Metadata = Annotated[Mapping[str, Any], "A note of yours; notes replace those from before."]


class AdaptationOptions(TypedDict, total=False):
    """How to learn, of `score` and of `sessions.create`; `info` says what there is."""

    kind: Annotated[Kind, "What may change; default: the model's first."]
    num_fast_weights: Annotated[int, "How many fast weights that is, of those numbers that there are."]
    experts: Annotated[Literal[1, 2, 4], "Learning rates to mix, the frozen one included."]
    rate_scale: Annotated[float, "Multiplies the calibrated learning rate, 0 to 10; 0 never learns."]
    static: Annotated[bool, "Read with the weights as loaded beside; several experts need it."]


class ScoreOptions(TypedDict, total=False):
    """Of `score`."""

    model: Model
    items: Annotated[Sequence[Mapping[str, Any]], "Each: text or tokens, and where wanted id and context."]
    tokens: Annotated[Sequence[int], "Instead of a text."]
    context: Annotated[str, "Read before the text, and not scored."]
    context_tokens: Annotated[Sequence[int], "Instead of a context."]
    unit: UnitOption
    scores: Scores
    spaces: Annotated[bool, "How probable white space was in each token's place."]
    words: Annotated[bool, "Sums and spans of words."]
    top: Annotated[int, "So many alternatives in each token's place."]
    adapt: Annotated[bool | Adapt, "Learn inside the text as it is read: weights, a memory, or both."]
    adaptation: Annotated[AdaptationOptions, "How; it implies adapt."]


class SamplingOptions(TypedDict, total=False):
    """Of every `generate`."""

    max_tokens: Annotated[int, "At most so many new tokens."]
    temperature: Annotated[float, "0 is greedy."]
    top_k: Annotated[int, "Keep the k most probable tokens."]
    top_p: Annotated[float, "Keep the fewest tokens of this probability."]
    min_p: Annotated[float, "Keep tokens this probable next to the best."]
    repetition_penalty: Annotated[float, "On tokens seen before."]
    seed: Annotated[int, "The same seed gives the same text."]
    stop: Annotated[str | Sequence[str], "End before this text, or one of these."]
    logprobs: Annotated[bool, "Give each token's log-probability."]
    unit: UnitOption


class GenerateOptions(SamplingOptions, total=False):
    """Of `generate` without a session."""

    model: Model
    tokens: Annotated[Sequence[int], "A prompt of ids instead of a text."]
    n: Annotated[int, "So many choices."]


class OnceOptions(TypedDict, total=False):
    """Of what makes or changes a session."""

    idempotency_key: Annotated[str, "Repeated with the same key, the change takes effect once."]


class ChangeOptions(OnceOptions, total=False):
    """Of `snapshot` and `restore`, and of every change."""

    if_match: Annotated[int, "The version that the session has to be at."]


class SessionGenerateOptions(SamplingOptions, ChangeOptions, total=False):
    """Of a session's `generate`. Key and version are of a text that is kept."""

    commit: Annotated[bool, "Keep the text in the session."]
    learn_from_output: Annotated[bool, "Of a text that is kept: learn from it too."]
    min_version: Annotated[int, "Refuse an older session."]


class ImportOptions(OnceOptions, total=False):
    """Of `sessions.import_session`."""

    name: Name
    ttl_seconds: Seconds


class CreateOptions(ImportOptions, total=False):
    """Of `sessions.create`."""

    model: Model
    adapt: Annotated[Adapt, "What adapts: fast weights, a memory of the newest text, or both."]
    adaptation: AdaptationOptions
    metadata: Metadata
    text: Annotated[str, "The first append; its answer is `Session.created.append`."]
    tokens: Annotated[Sequence[int], "Instead of a text."]
    scores: Annotated[Scores, "Of the first append, as unit."]
    unit: UnitOption


class ForkOptions(ImportOptions, total=False):
    """Of `fork`; what is left out is the source's, but for the name."""

    snapshot: Annotated[str, "The session as it was then, not as it is."]
    metadata: Metadata
    min_version: Annotated[int, "Refuse an older session."]


class StreamAppendOptions(TypedDict, total=False):
    """Of `stream`, for every piece."""

    learn: Annotated[bool, "Learn from the text after scoring it."]
    scores: Scores
    unit: UnitOption


class AppendOptions(StreamAppendOptions, ChangeOptions, total=False):
    """Of `append`. The key names the whole text: repeat the append with it."""

    final: Annotated[bool, "The text ends here: flush its last word."]
    spaces: Annotated[bool, "How probable white space was in each token's place."]
    note: Note


class UpdateOptions(ChangeOptions, total=False):
    """Of `update`; what is left out stays as it is."""

    ttl_seconds: Seconds
    metadata: Metadata
    learning: Annotated[bool, "Whether appends may learn."]
    note: Note


class ResetOptions(ChangeOptions, total=False):
    """Of `reset`."""

    what: Annotated[Literal["fast_weights", "recurrent", "both"], "What to forget."]

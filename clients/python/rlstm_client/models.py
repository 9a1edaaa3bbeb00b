"""What the server answers, as frozen values, and the one way in which they are read from JSON.

Every class keeps members that this release does not know in ``extra``, so a newer server breaks nothing.
Per-token data are columns: sequences of the same length, one entry a token. Log-probabilities are in the
answer's ``unit`` (nats unless asked otherwise); ``starts`` and ``ends`` are offsets in Unicode code points.
Times are seconds since 1970.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

Unit = Literal["nats", "bits", "log10"]
Scores = Literal["none", "totals", "tokens", "parts"]
Kind = Literal["full", "subspace", "output_bias"]
Adapt = Literal["weights", "memory", "both"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What all of them have: ``extra`` holds what this release does not know."""

    extra: Mapping[str, Any] = field(default_factory=dict)


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True, kw_only=True)
class Computed(Answer):
    """Which numbers these are: of what model and calibration, by whose arithmetic."""

    model: str | None = None
    fingerprint: str | None = None
    adaptation_fingerprint: str | None = None
    numerics: str | None = None


@dataclass(frozen=True, kw_only=True)
class Changed(Answer):
    """What a change survives, and whether this is a repeat's answer."""

    durability: str | None = None
    replayed: bool = False


@dataclass(frozen=True, kw_only=True)
class Adaptation(Answer):
    """How a text is learned from: the fast weights' kind and size, and the experts that are mixed.

    ``rates`` are the experts' learning rates, 0 for the static one, in the order of a session's ``weights``;
    in these a memory is the last. ``adapt`` says whether weights adapt, a memory, or both.
    """

    kind: str
    num_fast_weights: int
    experts: int = 1
    rate_scale: float = 1.0
    static: bool = True
    adapt: str = "weights"
    rates: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Totals(Answer):
    """Sums over the tokens of a text; ``static_…`` and ``gain`` compare with the weights as loaded.

    Where a memory is mixed in, ``weights_logprob`` is that of the weights alone, ``memory_logprob`` that of
    the expert that blends them with the memory.
    """

    logprob: float
    tokens: int
    bytes: int
    words: int | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    unknown: int = 0
    static_logprob: float | None = None
    static_bits_per_byte: float | None = None
    gain: float | None = None
    weights_logprob: float | None = None
    memory_logprob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Alternatives(Answer):
    """The most probable tokens in each token's place, best first: one row a token."""

    ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class WordScore(Answer):
    """One word's sum over its ``tokens`` tokens. The white space before a word belongs to it."""

    start: int
    end: int
    tokens: int
    logprob: float
    static_logprob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Columns(Answer):
    """One entry a token in each column that was asked for, else none.

    Those of weights and memory are of ``scores="parts"``, the last two of ``spaces``: the log-probability of
    white space in the token's place.
    """

    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    static_logprobs: Sequence[float] = ()
    ranks: Sequence[int] = ()
    entropies: Sequence[float] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    weights_logprobs: Sequence[float] = ()
    memory_logprobs: Sequence[float] = ()
    space_logprobs: Sequence[float] = ()
    static_space_logprobs: Sequence[float] = ()


COLUMNS: Final = tuple(column.name for column in fields(Columns) if column.name != "extra")


@dataclass(frozen=True, kw_only=True)
class ScoredItem(Columns):
    """One scored text; columns are empty where they were not asked for.

    ``first_token`` says what token 0 was scored against. ``bytes`` holds those of tokens that are no text by
    themselves, None for the others; it is empty where all are. ``updates`` and ``guards`` tell of learning.
    """

    totals: Totals
    first_token: str | None = None
    id: str | None = None
    bytes: Sequence[Sequence[int] | None] = ()
    top: Alternatives | None = None
    words: Sequence[WordScore] = ()
    updates: int = 0
    guards: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScoreResult(Computed):
    """The answer of `score`, and which numbers these are; ``adaptation`` says how the texts were learned."""

    items: Sequence[ScoredItem]
    unit: Unit = "nats"
    adaptation: Adaptation | None = None


@dataclass(frozen=True, kw_only=True)
class Choice(Answer):
    """One of several continuations."""

    text: str
    index: int = 0
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ending(Changed):
    """How a text was made: ``seed`` gives it again, ``version`` is of a session that keeps it."""

    seed: int | None = None
    unit: Unit = "nats"
    usage: Mapping[str, Any] = field(default_factory=dict)
    version: int | None = None
    position: int | None = None


@dataclass(frozen=True, kw_only=True)
class Generation(Choice, Computed, Ending):
    """A generated text. Of several continuations this is the first, and ``choices`` holds them all."""

    choices: Sequence[Choice] = ()


@dataclass(frozen=True, kw_only=True)
class TokenEvent(Answer):
    """The next token of choice ``index``, and the text it completes: none in the middle of a character."""

    text: str
    id: int
    index: int = 0
    step: int = 0
    logprob: float | None = None


@dataclass(frozen=True, kw_only=True)
class EndEvent(Ending):
    """The end of choice ``index`` of a stream."""

    finish_reason: str
    index: int = 0


Event = TokenEvent | EndEvent


@dataclass(frozen=True, kw_only=True)
class SessionTotals(Answer):
    """What a session has read so far, and what learning saved: ``gain`` is static minus adapted bits."""

    tokens: int = 0
    bytes: int = 0
    updates: int = 0
    guards: int = 0
    static_bits: float | None = None
    adapted_bits: float | None = None
    weights_bits: float | None = None
    memory_bits: float | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ancestor(Answer):
    """Where the history of a fork or an import began; ``snapshot`` is that version's name, if it had one."""

    session: str
    version: int
    snapshot: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionInfo(Computed, Changed):
    """A session as the server describes it; ``append`` answers the text given at create.

    ``weights`` say how much each expert counts in the next prediction, ``norm_ratio`` how large the fast
    weights are beside the loaded ones; ``learning`` says whether appends may learn.
    ``model`` and the fingerprints say what computes it; ``numerics`` is told of a session that was just made.
    """

    id: str
    version: int
    position: int
    name: str | None = None
    created_at: float | None = None
    expires_at: float | None = None
    state_bytes: int | None = None
    pending: int = 0
    adaptation: Adaptation | None = None
    weights: Sequence[float] = ()
    norm_ratio: float | None = None
    totals: SessionTotals = field(default_factory=SessionTotals)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    forked_from: Ancestor | None = None
    append: "AppendResult | None" = None


@dataclass(frozen=True, kw_only=True)
class SessionNote(Answer):
    """The newest note, and the version that was read; ``note`` is empty where there was none."""

    version: int
    note: str


@dataclass(frozen=True, kw_only=True)
class Snapshot(Changed):
    """A version of a session that was given a name, and where the session stood then."""

    name: str
    version: int
    position: int
    created_at: float | None = None
    state_bytes: int | None = None
    totals: SessionTotals = field(default_factory=SessionTotals)


@dataclass(frozen=True, kw_only=True)
class SnapshotList(Answer):
    """All named snapshots of a session."""

    snapshots: Sequence[Snapshot]


@dataclass(frozen=True, kw_only=True)
class SessionPage(Answer):
    """One page of sessions; ``cursor`` fetches the next, None at the end."""

    sessions: Sequence[SessionInfo]
    cursor: str | None = None


@dataclass(frozen=True, kw_only=True)
class AppendResult(Columns, Changed):
    """The text as the session foresaw it, scored before it was learned, and the session afterwards.

    ``learn`` says whether the text could be learned from: the session's learning may be off. ``updates``
    counts the segments learned from, ``guards`` what kept that in bounds, by name, ``pending``
    characters held back until their word is complete; ``durability`` says what the change survives, and
    ``weights`` and ``norm_ratio`` are the session's afterwards. A repeat is ``replayed``; where
    ``scores_stored`` is false its totals and columns are no longer known.
    """

    version: int
    position: int
    scores_stored: bool = True
    learn: bool = True
    updates: int = 0
    guards: Mapping[str, int] = field(default_factory=dict)
    weights: Sequence[float] = ()
    norm_ratio: float | None = None
    pending: int = 0
    totals: Totals | None = None
    unit: Unit = "nats"
    expires_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate(Answer):
    """One candidate of a session's ranking; rank 1 is the best.

    ``static_logprob``, ``static_score`` and ``static_rank`` are what the weights as loaded make of it, after
    the same text; None in a session without frozen baseline. ``gain`` is what learning saves.
    """

    logprob: float
    score: float
    rank: int
    tokens: int = 0
    id: str | None = None
    static_logprob: float | None = None
    gain: float | None = None
    static_score: float | None = None
    static_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ranking(Answer):
    """Candidates scored against one version of a session, in the order they were given."""

    version: int
    candidates: Sequence[Candidate]
    unit: Unit = "nats"

    @property
    def best(self) -> Candidate:
        """The candidate of rank 1."""
        return min(self.candidates, key=lambda candidate: candidate.rank)

    @property
    def static_best(self) -> Candidate | None:
        """The one that the weights as loaded would choose; None in a session without frozen baseline."""
        return next((one for one in self.candidates if one.static_rank == 1), None)


@dataclass(frozen=True, kw_only=True)
class Health(Answer):
    """Live or ready; the unready server is an `UnavailableError`."""

    status: str = "ok"


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo(Answer):
    """What is to be known of a vocabulary; ``add_bos_token`` says whether bos is read before every text."""

    model: str
    kind: str
    vocab_size: int
    bos_token: str
    bos_token_id: int
    eos_token: str
    eos_token_id: int
    pad_token: str | None = None
    add_bos_token: bool = False


@dataclass(frozen=True, kw_only=True)
class ServerInfo(Answer):
    """What the server runs: the model card, limits and defaults stay as the server names them.

    ``models`` are all that can be asked for, ``model`` is the first of them. ``adaptation`` has the rules
    that a session of that one can ask for, the default first, with the bytes it takes.
    """

    model: Any = None
    fingerprint: str | None = None
    version: str | None = None
    models: Sequence[Mapping[str, Any]] = ()
    adaptation: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


class UnexpectedShape(ValueError):
    """An answer is not the JSON that it should be; the sentence says what is wrong."""


def decode(kind: type[AnswerT], data: Any) -> AnswerT:
    """Read JSON data as a value of a class of this module.

    New members go to ``extra``, and null stands for a member that is not there.

    Raises:
        UnexpectedShape: a member is of another type, or one that has no default is missing.
    """
    cls: Any = kind
    readers, required = _members(cls)
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in as_object(data).items():
        if name not in readers:
            extra[name] = value
        elif value is not None:
            known[name] = readers[name](value)
    if missing := sorted(required - known.keys()):
        raise UnexpectedShape(f"the answer lacks {', '.join(missing)}")
    return kind(**known, extra=extra)


def decode_member(name: str, hint: Any, data: Any) -> Any:
    """Read one member of a JSON object as a value of this type."""
    return _reader(hint)(as_object(data).get(name))


def decode_object(text: str | bytes) -> dict[str, Any]:
    """Parse JSON text that is an object."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UnexpectedShape(f"not a JSON object: {error}") from error


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is."""
    if not isinstance(value, dict):
        raise UnexpectedShape("the answer is not the JSON object it should be")
    return value


def to_json(value: Any) -> Any:
    """Turn a value of this module back into what `json` can write, without members that say nothing."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "extra"}
        return to_json({**named, **getattr(value, "extra", {})})
    if isinstance(value, Mapping):
        return {name: to_json(member) for name, member in value.items() if member not in (None, (), {})}
    return [to_json(member) for member in value] if isinstance(value, list | tuple) else value


def check_columns(columns: Columns, tokens: int | None) -> None:
    """Refuse columns that are not as long as the tokens they stand for. Raises UnexpectedShape."""
    lengths = {name: len(getattr(columns, name)) for name in COLUMNS}
    given = {length for length in lengths.values() if length}
    if len(given) > 1 or (given and tokens is not None and given != {tokens}):
        raise UnexpectedShape(f"the columns of {tokens} tokens have other lengths: {lengths}")


Reader = Callable[[Any], Any]
_SCALARS: Final[Mapping[Any, Any]] = {str: str, bool: bool, int: int, float: (int, float)}


@cache
def _members(kind: Any) -> tuple[Mapping[str, Reader], frozenset[str]]:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items() if name != "extra"}
    required = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return readers, frozenset(required)


def _reader(hint: Any) -> Reader:
    """What reads the JSON of a member of this type; of ``X | None`` it is that of X."""
    named = [one for one in get_args(hint) if one is not type(None)]
    if type(None) in get_args(hint):
        return _reader(named[0])
    if is_dataclass(hint):
        return partial(decode, hint)  # type: ignore[type-var, arg-type]
    if get_origin(hint) is Sequence:
        return partial(_sequence, _reader(named[0]) if is_dataclass(named[0]) else None)
    if get_origin(hint) is Mapping:
        return as_object
    return partial(_scalar, _SCALARS.get(hint, object))


def _sequence(member: Reader | None, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise UnexpectedShape("the answer is not the JSON array it should be")
    return tuple(value if member is None else map(member, value))


def _scalar(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise UnexpectedShape(f"a member of the answer is a {type(value).__name__}, which it should not be")
    return tuple(value) if isinstance(value, list) else value

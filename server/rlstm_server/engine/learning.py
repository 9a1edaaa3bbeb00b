"""Reading a piece of text in a session, a segment a round, and what comes of it.

Sums are taken in float64.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from rlstm_model.adaptation.evaluator import AdaptedState, DynamicEvaluator, NonFiniteState, ObservedChunk
from rlstm_model.adaptation.loss_guard import GuardedSegment, LossGuard
from rlstm_model.scoring import TokenScores
from rlstm_server.engine.record import Guarded, ReadingRecord
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.steps import Steps, performed
from rlstm_server.engine.text import Piece
from rlstm_server.errors import StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import Columns, SessionTotals, Totals

UPDATE_OUTCOMES = {
    "step_skipped": "skipped_nonfinite",
    "restarted": "rolled_back",
    "reset": "rolled_back",
    "frozen": "skipped_frozen",
}
"""The guards that are no step, by the name they are counted under; "projected" is a step.

The evaluator's own are counted once a row, those of the watch over a single expert once a segment.
"""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What an operation will be counted as, once, when it has taken effect.

    `updates` are segments that were learned from, `row_steps` the steps of single rows in them.
    """

    scored: int = 0
    generated: int = 0
    adapted: int = 0
    updates: int = 0
    row_steps: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    norm_ratio: float | None = None
    session: Totals | None = None

    @property
    def guard_counts(self) -> dict[str, int]:
        """How often each guard acted, of those that did."""
        return dict(Counter(self.guards))

    @classmethod
    def of_items(cls, tallies: Sequence["Tally"]) -> "Tally":
        """The sum over stateless readings: nothing of it belongs to a session."""
        return cls(
            scored=sum(tally.scored for tally in tallies),
            adapted=sum(tally.adapted for tally in tallies),
            updates=sum(tally.updates for tally in tallies),
            row_steps=sum(tally.row_steps for tally in tallies),
            guards=tuple(guard for tally in tallies for guard in tally.guards),
            gradient_norms=tuple(norm for tally in tallies for norm in tally.gradient_norms),
        )

    def followed_by(self, other: "Tally") -> "Tally":
        """Both, as one operation; at most one of them is text of the session's reader."""
        both = Tally.of_items((self, other))
        return replace(
            both,
            generated=self.generated + other.generated,
            norm_ratio=self.norm_ratio if other.norm_ratio is None else other.norm_ratio,
            session=self.session if other.session is None else other.session,
        )

    def count(self, metrics: Metrics) -> None:
        """Add everything to the metrics."""
        for kind, tokens in (
            ("scored", self.scored),
            ("generated", self.generated),
            ("adapted", self.adapted),
        ):
            metrics.tokens.labels(kind).inc(tokens)
        clipped = self.guards.count("projected")
        metrics.updates.labels("clipped").inc(clipped)
        metrics.updates.labels("applied").inc(self.row_steps - clipped)
        for guard, outcome in UPDATE_OUTCOMES.items():
            metrics.updates.labels(outcome).inc(self.guards.count(guard))
        for norm in self.gradient_norms:
            metrics.gradient_norm.observe(norm)
        if self.norm_ratio is not None:
            metrics.delta_ratio.observe(self.norm_ratio)
        self._count_loss(metrics)

    def _count_loss(self, metrics: Metrics) -> None:
        if self.session is None:
            return
        adapted, static = -self.session.logprob, self.session.static_logprob
        if static is not None:
            metrics.learned(static_nats=-static, adapted_nats=adapted, tokens=self.session.tokens)
        else:
            metrics.loss_nats.labels("adapted").inc(adapted)
            metrics.loss_tokens.labels("adapted").inc(self.session.tokens)


class Reading(NamedTuple):
    """A piece was read: the state after it, its scores, how it is counted, and how it can be read again."""

    state: SessionState
    columns: Columns
    totals: Totals
    tally: Tally
    record: ReadingRecord


@dataclass
class _Parts:
    """The figures of one reading's parts, in order, but not their states: each may hold a whole delta."""

    scores: list[TokenScores] = field(default_factory=list)
    static: list[Tensor | None] = field(default_factory=list)
    updates: int = 0
    row_steps: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    norm_ratio: float | None = None
    count: int = 0
    guarded: dict[int, Guarded] = field(default_factory=dict)

    def add(self, part: ObservedChunk, guarded: Guarded) -> None:
        self.scores.append(part.scores)
        self.static.append(part.static_logprobs)
        self.updates += part.updates
        self.row_steps += _steps_of(part)
        self.guards += part.guards
        self.gradient_norms += part.gradient_norms
        if part.norm_ratio is not None:
            self.norm_ratio = part.norm_ratio
        if guarded != Guarded():
            self.guarded[self.count] = guarded
        self.count += 1

    @property
    def all_scores(self) -> TokenScores | None:
        return TokenScores.concatenate(self.scores) if self.scores else None

    @property
    def static_logprobs(self) -> tuple[float, ...] | None:
        if any(column is None for column in self.static):
            return None
        return tuple(value for column in self.static if column is not None for value in column.tolist())


def read_piece(
    state: SessionState, piece: Piece, *, learn: bool, top: int = 0, own: bool = False
) -> Steps[Any, Reading]:
    """Score a piece, then learn from it, a segment a round. `own` text was generated: not in the totals.

    Raises StateCorrupt when the session's state cannot be used; the state that was given stays as it is.
    """
    parts, adapted, watch = yield from _read(state, piece.ids, learn=learn, top=top)
    static = parts.static_logprobs if adapted.expert_config.static else None
    columns = columns_of(piece, parts.all_scores, static)
    totals = totals_of(piece, columns)
    tally = _tally(parts, totals, learn=learn, own=own)
    sums = state.totals if own else _add(state.totals, totals)
    sums = replace(sums, updates=sums.updates + tally.updates, guards=sums.guards + len(tally.guards))
    after = replace(state, adapted=adapted, totals=sums, place=piece.after, watch=watch)
    record = ReadingRecord(ids=columns.ids, learn=learn, guarded=parts.guarded)
    return Reading(after, columns, totals, tally, record)


def read_again(state: SessionState, record: ReadingRecord) -> Steps[Any, SessionState]:
    """Read what was read before, with the guards doing what they did then; place and sums stay as they are.

    Raises StateCorrupt when that cannot be done.
    """
    _, adapted, watch = yield from _read(state, record.ids, learn=record.learn, known=record.guarded)
    return replace(state, adapted=adapted, watch=watch)


def _read(
    state: SessionState,
    ids: Sequence[int],
    *,
    learn: bool,
    top: int = 0,
    known: Mapping[int, Guarded] | None = None,
) -> Steps[Any, tuple[_Parts, AdaptedState, LossGuard]]:
    """Read tokens, a segment a round. `known` is what guards did, in the parts where they did anything."""
    evaluator = state.evaluator
    parts, adapted, watch, done = _Parts(), state.adapted, state.watch, 0
    try:
        while done < len(ids):
            own = None if known is None else known.get(parts.count, Guarded())
            part = evaluator.chunk(
                adapted,
                ids[done : done + evaluator.config.segment],
                learn=learn and watch.learns,
                top=top,
                decided=None if own is None else own.decisions,
            )
            observed = yield from performed(part)
            lost = None if own is None else own.reset
            observed, seen = _watched(evaluator, watch, observed, learn=learn, lost=lost)
            parts.add(observed, Guarded(decisions=observed.decisions, reset=seen.lost))
            watch, adapted, done = seen.watch, observed.state, done + len(part.ids)
    except NonFiniteState as error:
        raise StateCorrupt("the session's state holds values that are not finite") from error
    return parts, adapted, watch


def _watched(
    evaluator: DynamicEvaluator, watch: LossGuard, part: ObservedChunk, *, learn: bool, lost: bool | None
) -> tuple[ObservedChunk, GuardedSegment]:
    """A part under the watch over a single expert, where the static row reads beside one."""
    if part.static_logprobs is None or part.state.expert_config.experts > 1:
        return part, GuardedSegment(watch)
    ends = part.state.position % evaluator.config.segment == 0
    seen = watch.after(part.scores.logprobs.tolist(), part.static_logprobs.tolist(), ends=ends, lost=lost)
    if seen.lost:
        state = evaluator.reset(part.state, fast_weights=True, recurrent=False)
        part = replace(part, state=state, guards=(*part.guards, "reset"))
    elif seen.frozen and learn:
        part = replace(part, guards=(*part.guards, "frozen"))
    return part, seen


def _steps_of(part: ObservedChunk) -> int:
    """Rows that took a step: where the segment was learned from, all but those whose step was skipped."""
    rows = len(part.state.expert_config.rates)
    return part.updates * (rows - part.guards.count("step_skipped"))


def columns_of(
    piece: Piece, scores: TokenScores | None, static_logprobs: tuple[float, ...] | None
) -> Columns:
    """Per-token data of a piece; `scores` None is for a piece without tokens."""
    return Columns(
        ids=tuple(piece.ids),
        logprobs=() if scores is None else tuple(scores.logprobs.tolist()),
        static_logprobs=static_logprobs,
        ranks=() if scores is None else tuple(scores.ranks.tolist()),
        entropies=() if scores is None else tuple(scores.entropies.tolist()),
        starts=tuple(piece.starts),
        ends=tuple(piece.ends),
        top=None if scores is None else alternatives(scores),
    )


def totals_of(piece: Piece, columns: Columns) -> Totals:
    """Sums over a piece, in float64."""
    static = columns.static_logprobs
    return Totals(
        logprob=sum(columns.logprobs),
        static_logprob=None if static is None else sum(static),
        tokens=len(piece.ids),
        bytes=piece.bytes,
        words=piece.words,
        unknown=piece.unknown,
    )


def alternatives(scores: TokenScores) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    """The most probable ids at each token with their log-probabilities; None where not asked for."""
    if scores.top_ids is None or scores.top_logprobs is None:
        return None
    rows = zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    return tuple(tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in rows)


def _tally(parts: _Parts, totals: Totals, *, learn: bool, own: bool) -> Tally:
    return Tally(
        scored=0 if own else totals.tokens,
        generated=totals.tokens if own else 0,
        adapted=totals.tokens if learn else 0,
        updates=parts.updates,
        row_steps=parts.row_steps,
        guards=parts.guards,
        gradient_norms=parts.gradient_norms,
        norm_ratio=parts.norm_ratio,
        session=None if own else totals,
    )


def _add(sums: SessionTotals, totals: Totals) -> SessionTotals:
    static = totals.static_logprob
    return replace(
        sums,
        tokens=sums.tokens + totals.tokens,
        bytes=sums.bytes + totals.bytes,
        adapted_nats=sums.adapted_nats - totals.logprob,
        static_nats=None if static is None or sums.static_nats is None else sums.static_nats - static,
    )

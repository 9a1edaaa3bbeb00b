"""Reading a piece of text in a session, a segment a round, and what comes of it.

Sums are taken in float64.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlstm_model.adaptation.batch import ObservedChunk
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.scores import TokenScores
from rlstm_server.engine.state import SessionState
from rlstm_server.engine.text import Piece
from rlstm_server.engine.worker import compute
from rlstm_server.errors import StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import SessionTotals
from rlstm_server.schemas.text import Columns, Totals

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
class TokenUsage:
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
    def of_items(cls, usages: Sequence["TokenUsage"]) -> "TokenUsage":
        """The sum over stateless readings: nothing of it belongs to a session."""
        return cls(
            scored=sum(usage.scored for usage in usages),
            adapted=sum(usage.adapted for usage in usages),
            updates=sum(usage.updates for usage in usages),
            row_steps=sum(usage.row_steps for usage in usages),
            guards=tuple(guard for usage in usages for guard in usage.guards),
            gradient_norms=tuple(norm for usage in usages for norm in usage.gradient_norms),
        )

    def followed_by(self, other: "TokenUsage") -> "TokenUsage":
        """Both, as one operation; at most one of them is text of the session's reader."""
        both = TokenUsage.of_items((self, other))
        return replace(
            both,
            generated=self.generated + other.generated,
            norm_ratio=self.norm_ratio if other.norm_ratio is None else other.norm_ratio,
            session=self.session if other.session is None else other.session,
        )

    def and_observed(self, part: ObservedChunk) -> "TokenUsage":
        """With one more part of the text: where it was learned from, all rows took a step but the skipped."""
        steps = part.updates * (len(part.state.expert_config.rates) - part.guards.count("step_skipped"))
        return replace(
            self,
            updates=self.updates + part.updates,
            row_steps=self.row_steps + steps,
            guards=self.guards + part.guards,
            gradient_norms=self.gradient_norms + part.gradient_norms,
            norm_ratio=self.norm_ratio if part.norm_ratio is None else part.norm_ratio,
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
        if self.session is None:
            return
        adapted, static = -self.session.logprob, self.session.static_logprob
        if static is not None:
            metrics.learned(static_nats=-static, adapted_nats=adapted, tokens=self.session.tokens)
        else:
            metrics.loss_nats.labels("adapted").inc(adapted)
            metrics.loss_tokens.labels("adapted").inc(self.session.tokens)


class Reading(NamedTuple):
    """A piece was read: the state after it, its scores, and how it is counted."""

    state: SessionState
    columns: Columns
    totals: Totals
    usage: TokenUsage


async def read_piece(
    state: SessionState, piece: Piece, *, learn: bool, top: int = 0, own: bool = False
) -> Reading:
    """Score a piece, then learn from it, a segment a batch step. `own` text was generated: not in the totals.

    Raises StateCorrupt when the session's state cannot be used; the state that was given stays as it is.
    """
    evaluator, adapted, watch, done = state.evaluator, state.adapted, state.watch, 0
    scores: list[TokenScores] = []
    static: list[float] = []
    usage = TokenUsage(adapted=len(piece.ids) if learn else 0)
    try:
        while done < len(piece.ids):
            ids = piece.ids[done : done + evaluator.segment]
            part = evaluator.chunk(adapted, ids, learn=learn and watch.learns, top=top)
            observed = await compute(part)
            if observed.state.expert_config.guarded:
                observed, watch = _watched(evaluator, watch, observed, learn=learn)
            usage = usage.and_observed(observed)
            scores.append(observed.scores)
            static += [] if observed.static_logprobs is None else observed.static_logprobs.tolist()
            adapted, done = observed.state, done + len(part.ids)
    except NonFiniteState as error:
        raise StateCorrupt("the session's state holds values that are not finite") from error
    columns = columns_of(
        piece,
        TokenScores.concatenate(scores) if scores else None,
        tuple(static) if adapted.expert_config.static else None,
    )
    totals = totals_of(piece, columns)
    if own:
        usage, sums = replace(usage, generated=totals.tokens), state.totals
    else:
        usage, sums = replace(usage, scored=totals.tokens, session=totals), _add(state.totals, totals)
    sums = replace(sums, updates=sums.updates + usage.updates, guards=sums.guards + len(usage.guards))
    after = replace(state, adapted=adapted, totals=sums, place=piece.after, watch=watch)
    return Reading(after, columns, totals, usage)


def _watched(
    evaluator: DynamicEvaluator, watch: LossGuard, part: ObservedChunk, *, learn: bool
) -> tuple[ObservedChunk, LossGuard]:
    """A part under the watch over a single expert, where the frozen baseline reads beside one."""
    if part.static_logprobs is None:
        return part, watch
    ends = part.state.position % evaluator.segment == 0
    seen = watch.after(part.scores.logprobs.tolist(), part.static_logprobs.tolist(), ends=ends)
    if seen.lost:
        state = evaluator.reset(part.state, fast_weights=True, recurrent=False)
        part = replace(part, state=state, guards=(*part.guards, "reset"))
    elif seen.frozen and learn:
        part = replace(part, guards=(*part.guards, "frozen"))
    return part, seen.guard


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
        top=None if scores is None or scores.top_ids is None else alternatives(scores),
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


def _add(sums: SessionTotals, totals: Totals) -> SessionTotals:
    static = totals.static_logprob
    return replace(
        sums,
        tokens=sums.tokens + totals.tokens,
        bytes=sums.bytes + totals.bytes,
        adapted_nats=sums.adapted_nats - totals.logprob,
        static_nats=None if static is None or sums.static_nats is None else sums.static_nats - static,
    )

"""Reading a piece of text in a session, a segment a round, and what comes of it.

Sums are taken in float64.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rlstm_model.adaptation.batch import ObservedChunk
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.scores import Floats, TokenScores
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


@dataclass(kw_only=True)
class TokenUsage:
    """What an operation will be counted as, once, when it has taken effect; each text that it reads adds.

    row_steps  steps of single rows, of those that were skipped none
    session    sums over the text of a session's reader, where it was any
    """

    scored: int = 0
    generated: int = 0
    adapted: int = 0
    row_steps: int = 0
    guards: Counter[str] = field(default_factory=Counter)
    gradient_norms: list[float] = field(default_factory=list)
    session: Totals | None = None

    def add(self, part: ObservedChunk) -> None:
        """Count a part of a text: where it was learned from, all rows took a step but the skipped."""
        self.row_steps += part.updates * (
            len(part.state.expert_config.rates) - part.guards.count("step_skipped")
        )
        self.guards.update(part.guards)
        self.gradient_norms += part.gradient_norms

    def count(self, metrics: Metrics) -> None:
        """Add everything to the metrics."""
        for kind, tokens in (
            ("scored", self.scored),
            ("generated", self.generated),
            ("adapted", self.adapted),
        ):
            metrics.tokens.labels(kind).inc(tokens)
        clipped = self.guards["projected"]
        metrics.updates.labels("clipped").inc(clipped)
        metrics.updates.labels("applied").inc(self.row_steps - clipped)
        for guard, outcome in UPDATE_OUTCOMES.items():
            metrics.updates.labels(outcome).inc(self.guards[guard])
        for norm in self.gradient_norms:
            metrics.gradient_norm.observe(norm)
        if self.session is None:
            return
        metrics.learned(
            self.session.tokens,
            adapted=self.session.logprob,
            static=self.session.static_logprob,
            weights=self.session.weights_logprob,
            memory=self.session.memory_logprob,
        )


class Reading(NamedTuple):
    """A piece was read: the state after it, its scores, the segments learned from, and what guards did."""

    state: SessionState
    columns: Columns
    totals: Totals
    updates: int
    guards: Mapping[str, int]


async def read_in_session(state: SessionState, piece: Piece, usage: TokenUsage, *, learn: bool) -> Reading:
    """Read a piece of a session's text, which it is counted as."""
    reading = await read_piece(state, piece, usage, learn=learn)
    usage.scored, usage.session = len(piece.ids), reading.totals
    return reading


async def read_piece(
    state: SessionState, piece: Piece, usage: TokenUsage, *, learn: bool, top: int = 0, own: bool = False
) -> Reading:
    """Score a piece, then learn from it, a segment a batch step. `own` text was generated: not in the totals.

    Raises StateCorrupt when the session's state cannot be used; the state that was given stays as it is.
    """
    evaluator, adapted, watch, done = state.evaluator, state.adapted, state.watch, 0
    updates, guards = 0, Counter[str]()
    scores: list[TokenScores] = []
    static: list[float] = []
    try:
        while done < len(piece.ids):
            ids = piece.ids[done : done + evaluator.segment]
            chunk = evaluator.chunk(adapted, ids, learn=learn and watch.learns, top=top)
            part = await compute(chunk)
            part, watch = _watched(evaluator, watch, part, learn=learn)
            usage.add(part)
            updates += part.updates
            guards.update(part.guards)
            scores.append(part.scores)
            static += [] if part.static_logprobs is None else part.static_logprobs.tolist()
            adapted, done = part.state, done + len(chunk.ids)
    except NonFiniteState as error:
        raise StateCorrupt("the session's state holds values that are not finite") from error
    usage.adapted += len(piece.ids) if learn else 0
    columns = columns_of(
        piece,
        TokenScores.concatenate(scores) if scores else None,
        tuple(static) if adapted.expert_config.static else None,
        remembers=adapted.expert_config.remembers,
    )
    totals, sums = totals_of(piece, columns), state.totals
    sums = sums if own else _add(sums, totals)
    sums = replace(sums, updates=sums.updates + updates, guards=sums.guards + guards.total())
    after = replace(state, adapted=adapted, totals=sums, place=piece.after, watch=watch)
    return Reading(after, columns, totals, updates, guards)


def _watched(
    evaluator: DynamicEvaluator, watch: LossGuard, part: ObservedChunk, *, learn: bool
) -> tuple[ObservedChunk, LossGuard]:
    """A part under the watch over a single expert, where the frozen baseline reads beside one."""
    if part.static_logprobs is None or not part.state.expert_config.guarded:
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
    piece: Piece,
    scores: TokenScores | None,
    static_logprobs: tuple[float, ...] | None,
    *,
    remembers: bool = False,
) -> Columns:
    """Per-token data of a piece; `scores` None is for a piece without tokens.

    Those of the weights and of the memory where one `remembers`.
    """

    def part(column: Floats | None) -> tuple[float, ...] | None:
        return tuple([] if column is None else column.tolist()) if remembers else None

    return Columns(
        ids=tuple(piece.ids),
        logprobs=() if scores is None else tuple(scores.logprobs.tolist()),
        static_logprobs=static_logprobs,
        ranks=() if scores is None else tuple(scores.ranks.tolist()),
        entropies=() if scores is None else tuple(scores.entropies.tolist()),
        starts=tuple(piece.starts),
        ends=tuple(piece.ends),
        weights_logprobs=part(None if scores is None else scores.weights_logprobs),
        memory_logprobs=part(None if scores is None else scores.memory_logprobs),
        top=None if scores is None or scores.top_ids is None else alternatives(scores),
    )


def totals_of(piece: Piece, columns: Columns) -> Totals:
    """Sums over a piece, in float64."""

    def total(column: Sequence[float] | None) -> float | None:
        return None if column is None else sum(column)

    return Totals(
        logprob=sum(columns.logprobs),
        static_logprob=total(columns.static_logprobs),
        weights_logprob=total(columns.weights_logprobs),
        memory_logprob=total(columns.memory_logprobs),
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
    def less(nats: float | None, logprob: float | None) -> float | None:
        return None if nats is None or logprob is None else nats - logprob

    return replace(
        sums,
        tokens=sums.tokens + totals.tokens,
        bytes=sums.bytes + totals.bytes,
        adapted_nats=sums.adapted_nats - totals.logprob,
        static_nats=less(sums.static_nats, totals.static_logprob),
        weights_nats=less(sums.weights_nats, totals.weights_logprob),
        memory_nats=less(sums.memory_nats, totals.memory_logprob),
    )

"""Scoring texts on the device: with the weights as loaded, learning inside each text, or after a session.

The texts of one request share its rounds, each a segment at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from rlstm_model.adaptation.batch_step import ScoreChunk, ScoredChunk
from rlstm_model.adaptation.evaluator import Cursor
from rlstm_model.adaptation.reader import CHUNK, Reader
from rlstm_server.engine.learning import Tally, columns_of, read_piece, totals_of
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.steps import Steps, performed, together
from rlstm_server.engine.text import Piece
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import (
    AdaptationChoice,
    Candidate,
    CandidateWeights,
    Columns,
    FirstToken,
    ItemScores,
    RankedCandidate,
    Totals,
)

ROWS_OF_REQUEST: Final = 64
"""Rows that one request takes of a round at most: it may have as many texts as a round has rows."""


@dataclass(frozen=True, kw_only=True)
class ItemText:
    """One item's tokens; `context` is read before them and not reported."""

    id: str
    piece: Piece
    context: Piece | None

    @property
    def tokens(self) -> int:
        """All that are read."""
        return len(self.piece.ids) + (len(self.context.ids) if self.context else 0)

    @property
    def first_token(self) -> FirstToken:
        """What the first token is scored against."""
        return "bos" if self.context is None else "context"


class Scored(NamedTuple):
    """Items scored, and how that is counted."""

    items: tuple[ItemScores, ...]
    tally: Tally


def score_items(reader: Reader, items: Sequence[ItemText], top: int) -> Steps[Any, Scored]:
    """Score each item from the reader's place, the beginning of all text."""
    done = yield from together((_score_item(reader, item, top) for item in items), ROWS_OF_REQUEST)
    return Scored(tuple(done), Tally(scored=sum(item.totals.tokens for item in done)))


def score_items_adapted(
    served: ServedModel, choice: AdaptationChoice, items: Sequence[ItemText], top: int
) -> Steps[Any, Scored]:
    """Score each item while learning from it (and from its context), each from the weights as loaded."""
    start = SessionState.before_text(served, choice)
    at_once = max(1, ROWS_OF_REQUEST // choice.expert_config.rows)
    done = yield from together((_score_adapting(start, item, top) for item in items), at_once)
    return Scored(tuple(scores for scores, _ in done), Tally.of_items([tally for _, tally in done]))


def rank_candidates(
    state: SessionState,
    candidates: Sequence[Candidate],
    pieces: Sequence[Piece],
    weights: CandidateWeights,
) -> Steps[Any, tuple[RankedCandidate, ...]]:
    """Score continuations of a session's present state, which stays as it is; rank 1 is the best mix."""
    reader = state.evaluator.reader(state.adapted, static=True)
    at_once = max(1, ROWS_OF_REQUEST // reader.cursor.state.batch)
    try:
        sums = yield from together((_sums(reader, piece) for piece in pieces), at_once)
    except ArithmeticError as error:
        raise StateCorrupt("the session's state gives values that are not finite") from error
    return _ranked(candidates, sums, weights)


def score_text(reader: Reader, cursor: Cursor, ids: Sequence[int], top: int = 0) -> Steps[Any, ScoredChunk]:
    """Scores of at least one token after a cursor, and the cursor after them."""
    parts: list[ScoredChunk] = []
    for start in range(0, len(ids), CHUNK):
        sliced = yield from performed(ScoreChunk(reader, cursor, tuple(ids[start : start + CHUNK]), top))
        parts.append(sliced)
        cursor = sliced.cursor
    return ScoredChunk.concatenate(parts)


def read(reader: Reader, ids: Sequence[int]) -> Steps[Any, Cursor]:
    """The reader's cursor after a text, which may be empty."""
    if not ids:
        return reader.cursor
    sliced = yield from score_text(reader, reader.cursor, ids)
    return sliced.cursor


class _Sums(NamedTuple):
    """Of a candidate; the static one is None where the session has no static row."""

    logprob: float
    static_logprob: float | None
    tokens: int


def _sums(reader: Reader, piece: Piece) -> Steps[Any, _Sums]:
    if not piece.ids:
        return _Sums(0.0, 0.0 if reader.static else None, 0)
    sliced = yield from score_text(reader, reader.cursor, piece.ids)
    static = None if sliced.static_logprobs is None else float(sliced.static_logprobs.double().sum())
    return _Sums(sliced.scores.total, static, len(piece.ids))


def _score_item(reader: Reader, item: ItemText, top: int) -> Steps[Any, ItemScores]:
    cursor = reader.cursor
    if item.context is not None:
        cursor = yield from read(reader, item.context.ids)
    sliced = yield from score_text(reader, cursor, item.piece.ids, top)
    columns = columns_of(item.piece, sliced.scores, None)
    return _item_scores(item, columns, totals_of(item.piece, columns), Tally())


def _score_adapting(state: SessionState, item: ItemText, top: int) -> Steps[Any, tuple[ItemScores, Tally]]:
    tallies = []
    if item.context is not None:
        before = yield from read_piece(state, item.context, learn=True)
        state = before.state
        tallies.append(replace(before.tally, scored=0))
    reading = yield from read_piece(state, item.piece, learn=True, top=top)
    tallies.append(reading.tally)
    return _item_scores(item, reading.columns, reading.totals, reading.tally), Tally.of_items(tallies)


def _item_scores(item: ItemText, columns: Columns, totals: Totals, tally: Tally) -> ItemScores:
    return ItemScores(
        id=item.id,
        first_token=item.first_token,
        text=item.piece.text,
        columns=columns,
        totals=totals,
        updates=tally.updates,
        guards=tally.guard_counts,
    )


def _ranked(
    candidates: Sequence[Candidate], sums: Sequence[_Sums], weights: CandidateWeights
) -> tuple[RankedCandidate, ...]:
    pairs = [*zip(candidates, sums, strict=True)]
    scores = [weights.score(own.logprob, own.tokens, each.given) for each, own in pairs]
    static_scores = [
        weights.score(own.static_logprob, own.tokens, each.given)
        for each, own in pairs
        if own.static_logprob is not None
    ]
    none = [None] * len(pairs)
    ranks, static_ranks = _ranks(scores), _ranks(static_scores)
    return tuple(
        RankedCandidate(
            id=each.id,
            logprob=own.logprob,
            static_logprob=own.static_logprob,
            tokens=own.tokens,
            score=score,
            static_score=static_score,
            rank=rank,
            static_rank=static_rank,
        )
        for (each, own), score, static_score, rank, static_rank in zip(
            pairs, scores, static_scores or none, ranks, static_ranks or none, strict=True
        )
    )


def _ranks(scores: Sequence[float]) -> list[int]:
    """The rank of each: 1 is the highest, ties keep their order."""
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
    ranks = {index: rank for rank, index in enumerate(best_first, start=1)}
    return [ranks[index] for index in range(len(scores))]

"""Scoring texts on the device: with the weights as loaded, learning inside each text, or after a session.

The texts of one request share its rounds, each a segment at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from rlstm_model.adaptation.adapter import Adapter, Cursor
from rlstm_model.adaptation.reader import CHUNK, Reader
from rlstm_model.adaptation.round import Slice
from rlstm_model.scoring import TokenScores
from rlstm_server.engine.learning import Tally, columns_of, read_piece, totals_of
from rlstm_server.engine.messages import (
    AdaptationChoice,
    Candidate,
    CandidateWeights,
    Columns,
    FirstToken,
    ItemScores,
    RankedCandidate,
    Totals,
)
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.steps import Steps, performed, together
from rlstm_server.engine.text import Piece
from rlstm_server.errors import StateCorrupt

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
    adapter: Adapter, choice: AdaptationChoice, items: Sequence[ItemText], top: int
) -> Steps[Any, Scored]:
    """Score each item while learning from it (and from its context), each from the weights as loaded."""
    start = SessionState.before_text(adapter, choice)
    at_once = max(1, ROWS_OF_REQUEST // choice.lineup.rows)
    done = yield from together((_score_adapting(adapter, start, item, top) for item in items), at_once)
    return Scored(tuple(scores for scores, _ in done), Tally.of_items([tally for _, tally in done]))


def rank_candidates(
    adapter: Adapter,
    state: SessionState,
    candidates: Sequence[Candidate],
    pieces: Sequence[Piece],
    weights: CandidateWeights,
) -> Steps[Any, tuple[RankedCandidate, ...]]:
    """Score continuations of a session's present state, which stays as it is; rank 1 is the best mix."""
    reader = adapter.reader(state.adapted)
    at_once = max(1, ROWS_OF_REQUEST // state.adapted.lineup.experts)
    try:
        logprobs = yield from together((_logprob(reader, piece) for piece in pieces), at_once)
    except ArithmeticError as error:
        raise StateCorrupt("the session's state gives values that are not finite") from error
    sums = [(logprob, len(piece.ids)) for logprob, piece in zip(logprobs, pieces, strict=True)]
    return _ranked(candidates, sums, weights)


def score_text(
    reader: Reader, cursor: Cursor, ids: Sequence[int], top: int = 0
) -> Steps[Any, tuple[TokenScores, Cursor]]:
    """Scores of at least one token after a cursor, and the cursor after them."""
    parts = []
    for start in range(0, len(ids), CHUNK):
        sliced = yield from performed(Slice(reader, cursor, tuple(ids[start : start + CHUNK]), top))
        parts.append(sliced.scores)
        cursor = sliced.cursor
    return TokenScores.concatenate(parts), cursor


def read(reader: Reader, ids: Sequence[int]) -> Steps[Any, Cursor]:
    """The reader's cursor after a text, which may be empty."""
    if not ids:
        return reader.cursor
    _, cursor = yield from score_text(reader, reader.cursor, ids)
    return cursor


def _logprob(reader: Reader, piece: Piece) -> Steps[Any, float]:
    if not piece.ids:
        return 0.0
    scores, _ = yield from score_text(reader, reader.cursor, piece.ids)
    return scores.total


def _score_item(reader: Reader, item: ItemText, top: int) -> Steps[Any, ItemScores]:
    cursor = reader.cursor
    if item.context is not None:
        cursor = yield from read(reader, item.context.ids)
    scores, _ = yield from score_text(reader, cursor, item.piece.ids, top)
    columns = columns_of(item.piece, scores, None)
    return _item_scores(item, columns, totals_of(item.piece, columns), Tally())


def _score_adapting(
    adapter: Adapter, state: SessionState, item: ItemText, top: int
) -> Steps[Any, tuple[ItemScores, Tally]]:
    tallies = []
    if item.context is not None:
        before = yield from read_piece(adapter, state, item.context, learn=True)
        state = before.state
        tallies.append(replace(before.tally, scored=0))
    reading = yield from read_piece(adapter, state, item.piece, learn=True, top=top)
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
    candidates: Sequence[Candidate], sums: Sequence[tuple[float, int]], weights: CandidateWeights
) -> tuple[RankedCandidate, ...]:
    mixed = [
        weights.lm * logprob + weights.length * tokens + weights.given * candidate.given
        for candidate, (logprob, tokens) in zip(candidates, sums, strict=True)
    ]
    best_first = sorted(range(len(mixed)), key=lambda index: -mixed[index])
    ranks = {index: rank for rank, index in enumerate(best_first, start=1)}
    return tuple(
        RankedCandidate(id=candidate.id, logprob=logprob, tokens=tokens, score=score, rank=ranks[index])
        for index, (candidate, (logprob, tokens), score) in enumerate(
            zip(candidates, sums, mixed, strict=True)
        )
    )

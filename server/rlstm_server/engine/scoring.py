"""Scoring texts on the device: with the weights as loaded, learning inside each text, or after a session."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores, score
from rlstm_model.state import State
from rlstm_server.engine.learning import Tally, columns_of, read_piece, totals_of
from rlstm_server.engine.messages import (
    AdaptationChoice,
    Candidate,
    CandidateWeights,
    Columns,
    FirstToken,
    ItemScores,
    RankedCandidate,
    SessionTotals,
    Totals,
)
from rlstm_server.engine.runner import Steps
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.text import Piece
from rlstm_server.errors import StateCorrupt

CHUNK = 256
"""Tokens of a slice of static reading."""


@dataclass(frozen=True, kw_only=True)
class ItemText:
    """One item's tokens; `context` is read before them and not reported."""

    id: str
    piece: Piece
    context: Piece | None

    @property
    def first_token(self) -> FirstToken:
        """What the first token is scored against."""
        return "bos" if self.context is None else "context"


class Scored(NamedTuple):
    """Items scored, and how that is counted."""

    items: tuple[ItemScores, ...]
    tally: Tally


def score_items(model: LanguageModel, bos_id: int, items: Sequence[ItemText], top: int) -> Steps[Any, Scored]:
    """Score each item from the beginning of all text, with the weights as loaded."""
    done = []
    for item in items:
        state, last = None, bos_id
        if item.context is not None:
            _, state, last = yield from _score(model, item.context.ids, state, last, 0)
        scores, _, _ = yield from _score(model, item.piece.ids, state, last, top)
        columns = columns_of(item.piece, scores, None)
        done.append(_item_scores(item, columns, totals_of(item.piece, columns), Tally()))
    return Scored(tuple(done), Tally(scored=sum(item.totals.tokens for item in done)))


def score_items_adapted(
    adapter: Adapter, choice: AdaptationChoice, items: Sequence[ItemText], top: int
) -> Steps[Any, Scored]:
    """Score each item while learning from it (and from its context), each from the weights as loaded."""
    done, tallies = [], []
    for item in items:
        adapted = adapter.start(rate_scale=choice.rate_scale, static=choice.static)
        state = SessionState(adapted=adapted, totals=SessionTotals())
        if item.context is not None:
            before = yield from read_piece(adapter, state, item.context, learn=True)
            state = before.state
            tallies.append(replace(before.tally, scored=0))
        reading = yield from read_piece(adapter, state, item.piece, learn=True, top=top)
        done.append(_item_scores(item, reading.columns, reading.totals, reading.tally))
        tallies.append(reading.tally)
    return Scored(tuple(done), Tally.of_items(tallies))


def rank_candidates(
    adapter: Adapter,
    state: SessionState,
    candidates: Sequence[Candidate],
    pieces: Sequence[Piece],
    weights: CandidateWeights,
) -> Steps[Any, tuple[RankedCandidate, ...]]:
    """Score continuations of a session's present state, which stays as it is; rank 1 is the best mix."""
    sums = []
    reader = adapter.reader(state.adapted)
    for piece in pieces:
        cursor, logprob = reader.cursor, 0.0
        for start in range(0, len(piece.ids), CHUNK):
            try:
                scores, cursor = reader.score(cursor, piece.ids[start : start + CHUNK])
            except ArithmeticError as error:
                raise StateCorrupt("the session's state gives values that are not finite") from error
            logprob += scores.total
            yield ()
        sums.append((logprob, len(piece.ids)))
    return _ranked(candidates, sums, weights)


def read_static(
    model: LanguageModel, ids: Sequence[int], state: State, last: int
) -> Steps[Any, tuple[State, int]]:
    """Read a text without scoring it; the state is the one before its last token, which is returned too."""
    inputs = [last, *ids[:-1]] if ids else []
    for start in range(0, len(inputs), CHUNK):
        state = _read(model, inputs[start : start + CHUNK], state)
        yield ()
    return state, ids[-1] if ids else last


@torch.no_grad()
def _read(model: LanguageModel, inputs: Sequence[int], state: State) -> State:
    ids_T1 = torch.tensor(inputs, device=state.h.device)[:, None]
    return model(ids_T1, state)[1]  # type: ignore[no-any-return]


def _score(
    model: LanguageModel, ids: Sequence[int], state: State | None, last: int, top: int
) -> Steps[Any, tuple[TokenScores, State, int]]:
    parts: list[TokenScores] = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        scores, state = score(model, part, state=state, last=last, top=top, chunk=CHUNK)
        parts.append(scores)
        last = part[-1]
        yield ()
    if state is None:
        raise ValueError("there are no tokens to score")
    return TokenScores.concatenate(parts), state, last


def _item_scores(item: ItemText, columns: Columns, totals: Totals, tally: Tally) -> ItemScores:
    return ItemScores(
        id=item.id,
        first_token=item.first_token,
        text=item.piece.text,
        columns=columns,
        totals=totals,
        updates=tally.updates,
        guards=tally.guards,
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

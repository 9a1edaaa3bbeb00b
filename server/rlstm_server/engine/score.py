"""Scoring texts: with the weights as loaded, learning inside each text, or after a session's text.

The texts of one request share its batches, each a segment at a time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.evaluator import Reader
from rlstm_model.adaptation.items import ScoreChunk, ScoredChunk
from rlstm_model.adaptation.state import Cursor
from rlstm_server.engine import requests
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.reading import (
    Piece,
    columns_of,
    read_context,
    read_passage,
    read_piece,
)
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.state import SessionCopy, SessionState
from rlstm_server.engine.worker import compute, gather
from rlstm_server.errors import InvalidField, StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import (
    Candidate,
    CandidatesAnswer,
    CandidatesRequest,
    CandidateWeights,
    RankedCandidate,
)
from rlstm_server.schemas.text import (
    AdaptationChoice,
    ItemScores,
    ScoreAnswer,
    ScoreItem,
    ScoreRequest,
    Totals,
)
from rlstm_server.settings import Limits

ROWS_OF_REQUEST: Final = 64
"""Rows that one request takes of a batch step at most: it may have as many texts as a batch step has rows."""


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


@dataclass(frozen=True, eq=False)
class Scoring:
    """Scores that change nothing: from the weights as loaded, or from the state that a session has now."""

    sessions: Sessions
    models: Models
    limits: Limits

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Log-probabilities of texts, each on its own.

        Without adaptation they are those of :meth:`rlstm_model.local.LocalModel.score`, to the last bit.
        """
        requests.within("items", len(request.named_items), self.limits.score_items)
        served = self.models.named(request.model)
        given = request.named_items
        size = sum(len(item.passage) + len(item.before) for item in given)
        items = await requests.off_loop(size, partial(self._item_texts, served, given))
        choice = None if request.learning is None else served.choose(request.learning)
        rows, metrics = min(len(items), ROWS_OF_REQUEST), self.sessions.metrics
        with self.sessions.taking(None, request.call.quota) as charge:
            count = sum(text.tokens for text in items)
            charge.add(tokens=count, learned=0 if choice is None else count)
            job = partial(score_items, served, choice, items, request, metrics)
            ran = await self.sessions.worker.run(job, request.call, rows)
        metrics.tokens.labels("scored").inc(sum(item.totals.tokens for item in ran.result))
        return ScoreAnswer(
            identity=served.identity, items=tuple(ran.result), adaptation=choice, timings=ran.timings
        )

    def _item_texts(self, served: ServedModel, items: Sequence[ScoreItem]) -> Sequence[ItemText]:
        given = sum(len(item.tokens or ()) for item in items)
        requests.within("tokens of all items", given, self.limits.score_tokens)  # before any is read
        texts = [_item_text(served, index, item) for index, item in enumerate(items)]
        count = sum(text.tokens for text in texts)
        requests.within("tokens of all items", count, self.limits.score_tokens)
        return texts

    async def rank(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations."""
        requests.within("candidates", len(request.candidates), self.limits.candidates)
        key = requests.session_key(request.call)
        copy = await self.sessions.read(key, request.min_version)
        size = sum(len(candidate.passage) for candidate in request.candidates)
        pieces = await requests.off_loop(size, partial(self._candidate_pieces, request, copy))
        job = partial(rank_candidates, copy.state, request.named_candidates, pieces, request.mix)
        taking = self.sessions.taking(None, request.call.quota)
        with taking as charge, self.sessions.distrusting(key):
            charge.add(tokens=sum(len(piece.ids) for piece in pieces))
            ran = await self.sessions.worker.run(job, request.call, min(len(pieces), ROWS_OF_REQUEST))
        self.sessions.metrics.tokens.labels("scored").inc(sum(ranked.tokens for ranked in ran.result))
        return CandidatesAnswer(version=copy.revision.version, candidates=ran.result, timings=ran.timings)

    def _candidate_pieces(self, request: CandidatesRequest, copy: SessionCopy) -> Sequence[Piece]:
        vocab, place = copy.state.served.vocab, copy.state.place
        pieces = [
            read_passage(vocab, candidate.passage, f"candidates[{index}]", place=place)
            for index, candidate in enumerate(request.candidates)
        ]
        count = sum(len(piece.ids) for piece in pieces)
        requests.within("tokens of all candidates", count, self.limits.append_tokens)
        return pieces


def _item_text(served: ServedModel, index: int, item: ScoreItem) -> ItemText:
    field = f"items[{index}]"
    piece = read_passage(served.vocab, item.passage, field)
    if not piece.ids:
        raise InvalidField(f"{field}.text", "the text holds no token")
    context = read_context(served.vocab, item.before, f"{field}.context")
    return ItemText(id=str(item.id), piece=piece, context=context)


# ---- on the device thread ---------------------------------------------------------------------------------


async def score_items(
    served: ServedModel,
    choice: AdaptationChoice | None,
    items: Sequence[ItemText],
    request: ScoreRequest,
    metrics: Metrics,
) -> Sequence[ItemScores]:
    """Score each item from the weights as loaded; with a choice, learn from it (and its context) as well."""
    start = None if choice is None else SessionState.before_text(served, choice)
    rows = 1 if choice is None else choice.expert_config.rows
    work = (_score_item(served, start, item, request, metrics) for item in items)
    return await gather(work, max(1, ROWS_OF_REQUEST // rows))


async def rank_candidates(
    state: SessionState,
    candidates: Sequence[Candidate],
    pieces: Sequence[Piece],
    weights: CandidateWeights,
) -> tuple[RankedCandidate, ...]:
    """Score continuations of a session's present state, which stays as it is; rank 1 is the best mix."""
    reader = state.evaluator.reader(state.adapted, static=True)
    at_once = max(1, ROWS_OF_REQUEST // len(reader.cursor.states_R2U))
    work = (_sums(reader, *pair, weights) for pair in zip(candidates, pieces, strict=True))
    try:
        found = await gather(work, at_once)
    except ArithmeticError as error:
        raise StateCorrupt("the session's state gives values that are not finite") from error
    ranks = _ranks([one.score for one in found])
    static = _ranks([one.static_score for one in found if one.static_score is not None])
    return tuple(
        replace(one, rank=rank, static_rank=static_rank)
        for one, rank, static_rank in zip_longest(found, ranks, static)
    )


async def score_text(
    reader: Reader,
    cursor: Cursor,
    ids: Sequence[int],
    top: int = 0,
    spaces: NDArray[np.intp] | None = None,
) -> ScoredChunk:
    """Scores of at least one token after a cursor, and the cursor after them."""
    parts: list[ScoredChunk] = []
    for start in range(0, len(ids), reader.at_once):
        some = tuple(ids[start : start + reader.at_once])
        sliced = await compute(ScoreChunk(reader, cursor, some, top, spaces=spaces))
        parts.append(sliced)
        cursor = sliced.cursor
    return ScoredChunk.concatenate(parts)


async def _sums(
    reader: Reader, candidate: Candidate, piece: Piece, weights: CandidateWeights
) -> RankedCandidate:
    """One continuation's, without a rank; static ones where the session has a static row."""
    logprob, static, tokens = 0.0, 0.0 if reader.static else None, len(piece.ids)
    if tokens:
        sliced = await score_text(reader, reader.cursor, piece.ids)
        logprob, columns = sliced.scores.total, sliced.static_logprobs
        static = None if columns is None else float(columns.sum(dtype=np.float64))
    return RankedCandidate(
        id=str(candidate.id),
        logprob=logprob,
        static_logprob=static,
        tokens=tokens,
        score=weights.score(logprob, tokens, candidate.given),
        static_score=None if static is None else weights.score(static, tokens, candidate.given),
        rank=0,
        static_rank=None,
    )


async def _score_item(
    served: ServedModel, start: SessionState | None, item: ItemText, request: ScoreRequest, metrics: Metrics
) -> ItemScores:
    piece, updates, guards = item.piece, 0, Counter[str]()
    if start is not None:
        if item.context is not None:
            context = await read_piece(start, item.context, learn=True)
            context.count(metrics)
            start = context.state
        reading = await read_piece(start, piece, learn=True, top=request.top, spaces=request.spaces)
        reading.count(metrics)
        columns, totals = reading.columns, reading.totals
        updates, guards = reading.updates, reading.guards
    else:
        reader, spaces = served.reader, served.spaces if request.spaces else None
        cursor = reader.cursor
        if item.context is not None:
            cursor = (await score_text(reader, cursor, item.context.ids)).cursor
        sliced = await score_text(reader, cursor, piece.ids, request.top, spaces)
        columns = columns_of(piece, sliced.scores, None)
        totals = Totals.of(columns, bytes=piece.bytes, words=piece.words, unknown=piece.unknown)
    return ItemScores(
        id=item.id,
        first_token="bos" if item.context is None else "context",
        text=piece.text,
        columns=columns,
        totals=totals,
        updates=updates,
        guards=guards,
    )


def _ranks(scores: Sequence[float]) -> list[int]:
    """The rank of each: 1 is the highest, ties keep their order."""
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
    ranks = {index: rank for rank, index in enumerate(best_first, start=1)}
    return [ranks[index] for index in range(len(scores))]

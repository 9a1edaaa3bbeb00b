"""Scoring texts: with the weights as loaded, learning inside each text, or after a session's text.

The texts of one request share its batches, each a segment at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.evaluator import Reader
from rlstm_model.adaptation.items import ScoreChunk, ScoredChunk
from rlstm_model.adaptation.state import Cursor
from rlstm_server.engine import requests
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.quotas import charging
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
    Columns,
    FirstToken,
    ItemScores,
    ScoreAnswer,
    ScoreItem,
    ScoreRequest,
    Timings,
    Totals,
)
from rlstm_server.settings import Limits

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
        size = sum(requests.size_of(item) + requests.size_of(item.before) for item in given)
        items = await requests.off_loop(size, partial(self._item_texts, served, given))
        choice = None if request.learning is None else served.choose(request.learning)
        rows, metrics = min(len(items), ROWS_OF_REQUEST), self.sessions.metrics
        with self.sessions.taking(None), charging(request.call.quota) as charge:
            count = sum(text.tokens for text in items)
            charge.add(tokens=count, learned=0 if choice is None else count)
            job = partial(score_items, served, choice, items, request, metrics)
            ran = await self.sessions.worker.run(job, request.call, rows)
        metrics.tokens.labels("scored").inc(sum(item.totals.tokens for item in ran.result))
        timings = Timings(queue=ran.queue_seconds, compute=ran.compute_seconds)
        return ScoreAnswer(
            identity=served.identity, items=tuple(ran.result), adaptation=choice, timings=timings
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
        key = requests.session_key(request.call.tenant, request.call.session)
        copy = await self.sessions.read(key, request.min_version)
        size = sum(requests.size_of(candidate) for candidate in request.candidates)
        pieces = await requests.off_loop(size, partial(self._candidate_pieces, request, copy))
        job = partial(rank_candidates, copy.state, request.named_candidates, pieces, request.mix)
        taking, distrusting = self.sessions.taking(None), self.sessions.distrusting(key)
        with taking, distrusting, charging(request.call.quota) as charge:
            charge.add(tokens=sum(len(piece.ids) for piece in pieces))
            ran = await self.sessions.worker.run(job, request.call, min(len(pieces), ROWS_OF_REQUEST))
        self.sessions.metrics.tokens.labels("scored").inc(sum(ranked.tokens for ranked in ran.result))
        timings = Timings(queue=ran.queue_seconds, compute=ran.compute_seconds)
        return CandidatesAnswer(version=copy.position.version, candidates=ran.result, timings=timings)

    def _candidate_pieces(self, request: CandidatesRequest, copy: SessionCopy) -> Sequence[Piece]:
        vocab, place = copy.state.served.vocab, copy.state.place
        pieces = [
            read_passage(vocab, candidate, f"candidates[{index}]", place=place)
            for index, candidate in enumerate(request.candidates)
        ]
        count = sum(len(piece.ids) for piece in pieces)
        requests.within("tokens of all candidates", count, self.limits.append_tokens)
        return pieces


def _item_text(served: ServedModel, index: int, item: ScoreItem) -> ItemText:
    field = f"items[{index}]"
    piece = read_passage(served.vocab, item, field)
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
    if choice is None:
        work = (_score_item(served, item, request) for item in items)
        at_once = ROWS_OF_REQUEST
    else:
        start = SessionState.before_text(served, choice)
        work = (_score_adapting(start, item, request, metrics) for item in items)
        at_once = max(1, ROWS_OF_REQUEST // choice.expert_config.rows)
    return await gather(work, at_once)


async def rank_candidates(
    state: SessionState,
    candidates: Sequence[Candidate],
    pieces: Sequence[Piece],
    weights: CandidateWeights,
) -> tuple[RankedCandidate, ...]:
    """Score continuations of a session's present state, which stays as it is; rank 1 is the best mix."""
    reader = state.evaluator.reader(state.adapted, static=True)
    at_once = max(1, ROWS_OF_REQUEST // len(reader.cursor.states_R2U))
    try:
        sums = await gather((_sums(reader, piece) for piece in pieces), at_once)
    except ArithmeticError as error:
        raise StateCorrupt("the session's state gives values that are not finite") from error
    return _ranked(candidates, sums, weights)


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


async def read(reader: Reader, ids: Sequence[int]) -> Cursor:
    """The reader's cursor after a text, which may be empty."""
    if not ids:
        return reader.cursor
    sliced = await score_text(reader, reader.cursor, ids)
    return sliced.cursor


class _Sums(NamedTuple):
    """Of a candidate; the static one is None where the session has no static row."""

    logprob: float
    static_logprob: float | None
    tokens: int


async def _sums(reader: Reader, piece: Piece) -> _Sums:
    if not piece.ids:
        return _Sums(0.0, 0.0 if reader.static else None, 0)
    sliced = await score_text(reader, reader.cursor, piece.ids)
    static = None if sliced.static_logprobs is None else float(sliced.static_logprobs.sum(dtype=np.float64))
    return _Sums(sliced.scores.total, static, len(piece.ids))


async def _score_item(served: ServedModel, item: ItemText, request: ScoreRequest) -> ItemScores:
    reader, piece = served.reader, item.piece
    cursor, spaces = reader.cursor, served.spaces if request.spaces else None
    if item.context is not None:
        cursor = await read(reader, item.context.ids)
    sliced = await score_text(reader, cursor, piece.ids, request.top, spaces)
    columns = columns_of(piece, sliced.scores, None)
    totals = Totals.of(columns, bytes=piece.bytes, words=piece.words, unknown=piece.unknown)
    return _item_scores(item, columns, totals, updates=0, guards={})


async def _score_adapting(
    state: SessionState, item: ItemText, request: ScoreRequest, metrics: Metrics
) -> ItemScores:
    if item.context is not None:
        context = await read_piece(state, item.context, learn=True)
        context.count(metrics)
        state = context.state
    reading = await read_piece(state, item.piece, learn=True, top=request.top, spaces=request.spaces)
    reading.count(metrics)
    return _item_scores(item, reading.columns, reading.totals, updates=reading.updates, guards=reading.guards)


def _item_scores(
    item: ItemText, columns: Columns, totals: Totals, *, updates: int, guards: Mapping[str, int]
) -> ItemScores:
    return ItemScores(
        id=item.id,
        first_token=item.first_token,
        text=item.piece.text,
        columns=columns,
        totals=totals,
        updates=updates,
        guards=guards,
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
            id=str(each.id),
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

"""POST /score: log-probabilities of texts, each on its own; optionally learning inside each text.

Sums over words follow one convention: a word is a run of characters that are not white space, and the white
space before it belongs to it. White space after the last word is an entry of its own. Every token counts in
exactly one word, the one that its span starts in, so the words sum to the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from fastapi import Response

from rlstm_model.vocab import Vocab
from rlstm_server.api.bodies import BODY, answers, respond, strict_routes
from rlstm_server.api.dependencies import ContextDep
from rlstm_server.errors import TooLarge
from rlstm_server.schemas.text import Columns, ItemScores, ScoreAnswer, ScoreRequest, WordScore
from rlstm_server.schemas.wire import FACTORS, laid_out

WORD: Final = re.compile(r"\s*\S+|\s+\Z")

routes = strict_routes("score")


@routes.post("/score", responses=answers(200, ScoreAnswer, 404, *BODY), summary="Score texts")
async def score(body: ScoreRequest, context: ContextDep) -> Response:
    """Score texts. Log-probabilities are of the raw distribution: finite, at most 0, at least -9999 nats."""
    context.held.expect(_numbers(body, context.limits.score_numbers))
    vocab = context.engine.models.named(body.model).vocab
    answer = await context.engine.score(body.by(context.call))

    def build() -> dict[str, Any]:
        items = tuple(_as_asked(item, body, vocab) for item in answer.items)
        return laid_out(replace(answer, items=items), body.unit)

    tokens = sum(item.totals.tokens for item in answer.items) * (1 + body.top)
    return await respond(build, tokens=tokens, timings=answer.timings)


def _numbers(body: ScoreRequest, limit: int) -> int:
    """Bound items x tokens x alternatives before anything of that size is made."""
    numbers = sum(item.most_tokens for item in body.named_items) * (1 + body.top)
    if numbers > limit:
        raise TooLarge("tokens x (1 + top) of all items", numbers, limit)
    return numbers


def _as_asked(item: ItemScores, body: ScoreRequest, vocab: Vocab) -> ItemScores:
    """Add what was asked for besides, and leave out what was not."""
    words = word_scores(item.text, item.columns, FACTORS[body.unit]) if body.words and item.columns else None
    columns = None if item.columns is None else item.columns.asked(body.scores)
    spelled = None if columns is None else byte_column(columns.ids, vocab)
    return replace(item, columns=columns, bytes=spelled, words=words)


def word_scores(text: str, columns: Columns, factor: float) -> list[WordScore]:
    """Sum over the words of `text`, each log-probability multiplied by `factor`."""
    spans = [match.span() for match in WORD.finditer(text)]
    ends = np.array([end for _, end in spans], dtype=np.int64)
    word_of_token = np.searchsorted(ends, np.asarray(columns.starts, dtype=np.int64), side="right")
    counts = np.bincount(word_of_token, minlength=len(spans)).tolist()
    sums = _sums(word_of_token, columns.logprobs, len(spans), factor)
    rows = [
        WordScore(start=start, end=end, tokens=count, logprob=logprob)
        for (start, end), count, logprob in zip(spans, counts, sums, strict=True)
    ]
    if columns.static_logprobs is not None:
        static = _sums(word_of_token, columns.static_logprobs, len(spans), factor)
        for row, logprob in zip(rows, static, strict=True):
            row["static_logprob"] = logprob
    return rows


def _sums(
    word_of_token: np.ndarray[Any, Any], values: Sequence[float], words: int, factor: float
) -> list[float]:
    sums: list[float] = (np.bincount(word_of_token, weights=values, minlength=words) * factor).tolist()
    return sums


def byte_column(ids: Sequence[int], vocab: Vocab) -> list[list[int] | None] | None:
    """Give the bytes of each token that is not valid UTF-8 by itself, else None; None if all are valid."""
    partial = {token: _partial_bytes(vocab.token_bytes(token)) for token in set(ids)}
    if not any(partial.values()):
        return None
    return [partial[token] for token in ids]


def _partial_bytes(data: bytes) -> list[int] | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
    return None

"""Sums over words, and the bytes of tokens that are no text by themselves.

The convention: a word is a run of characters that are not white space, and the white space before it belongs
to it. White space after the last word is an entry of its own. Every token counts in exactly one word, the one
that its span starts in, so the words sum to the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from rlstm_model.vocab import Vocab
from rlstm_server.api.answers import column
from rlstm_server.schemas import Columns

WORD = re.compile(r"\s*\S+|\s+\Z")


def word_rows(text: str, columns: Columns, factor: float) -> orjson.Fragment:
    """Lay out the words of `text`: spans in code points, tokens, summed log-probabilities."""
    spans = [match.span() for match in WORD.finditer(text)]
    ends = np.array([end for _, end in spans], dtype=np.int64)
    word_of_token = np.searchsorted(ends, np.asarray(columns.starts, dtype=np.int64), side="right")
    rows: list[dict[str, Any]] = [{"start": start, "end": end} for start, end in spans]
    sums: dict[str, Sequence[float]] = {
        "tokens": np.bincount(word_of_token, minlength=len(spans)).tolist(),
        "logprob": _sums(word_of_token, columns.logprobs, len(spans), factor),
    }
    if columns.static_logprobs is not None:
        sums["static_logprob"] = _sums(word_of_token, columns.static_logprobs, len(spans), factor)
    for name, values in sums.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return column(rows)


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

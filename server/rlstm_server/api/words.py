"""Sums over words, and the bytes of tokens that are no text by themselves.

The convention: a word is a run of characters that are not white space, and the white space before it belongs to
it. White space after the last word is an entry of its own. Every token counts in exactly one word, the one that
its span starts in, so the words sum to the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlstm_model.vocab import Vocab
from rlstm_server.api.answers import column
from rlstm_server.engine.messages import Columns

WORD = re.compile(r"\s*\S+|\s+\Z")


def word_fields(text: str, columns: Columns, factor: float) -> dict[str, Any]:
    """Lay out the words of `text` as columns: spans in code points, token counts, summed log-probabilities."""
    spans = [match.span() for match in WORD.finditer(text)]
    ends = np.array([end for _, end in spans], dtype=np.int64)
    word_of_token = np.searchsorted(ends, np.asarray(columns.starts, dtype=np.int64), side="right")
    fields = {
        "starts": column([start for start, _ in spans]),
        "ends": column([end for _, end in spans]),
        "tokens": column(np.bincount(word_of_token, minlength=len(spans)).tolist()),
        "logprobs": column(_sums(word_of_token, columns.logprobs, len(spans)), factor),
    }
    if columns.static_logprobs is not None:
        fields["static_logprobs"] = column(_sums(word_of_token, columns.static_logprobs, len(spans)), factor)
    return fields


def _sums(word_of_token: np.ndarray[Any, Any], values: Sequence[float], words: int) -> list[float]:
    sums: list[float] = np.bincount(word_of_token, weights=values, minlength=words).tolist()
    return sums


def byte_column(ids: Sequence[int], vocab: Vocab) -> list[list[int] | None] | None:
    """Give the bytes of each token that is not valid UTF-8 by itself, None for the others; None if all are."""
    partial = {id: _partial_bytes(vocab.token_bytes(id)) for id in set(ids)}
    if not any(partial.values()):
        return None
    return [partial[id] for id in ids]


def _partial_bytes(data: bytes) -> list[int] | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
    return None

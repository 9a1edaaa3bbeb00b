"""Scores of given tokens: log-probability, rank, entropy, alternatives.

All numbers are those of the raw distribution, in nats; sums over a text are taken in float64.
Shape suffixes: N tokens of one text, V vocabulary, K alternatives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlstm_model.vocab import Encoded

LOGPROB_FLOOR = -9999.0

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenScores:
    """Columns over N tokens.

    ``logprobs`` float32 ``[N]``: finite, at most 0, never below the floor; ``ranks`` int64 ``[N]``: 1 is
    the most probable token, ties go to the lower id; ``entropies`` float32 ``[N]`` of the distribution
    that the token was scored against; ``top_ids`` and ``top_logprobs`` ``[N, K]``, best first, or None.
    Where only log-probabilities were asked for, ranks are 0 and entropies NaN. Of a mixture with a memory,
    ``weights_logprobs`` are those of the weights alone, ``memory_logprobs`` of the expert that blends them
    with the memory's counts; without a memory both are None. ``space_logprobs`` are of white space in the
    token's place: of all tokens together that begin with it (Pimentel & Meister 2024), and
    ``static_space_logprobs`` the same under the weights as loaded; None where they were not asked for.
    """

    logprobs: Floats
    ranks: NDArray[np.int64]
    entropies: Floats
    top_ids: NDArray[np.int64] | None = None
    top_logprobs: Floats | None = None
    weights_logprobs: Floats | None = None
    memory_logprobs: Floats | None = None
    space_logprobs: Floats | None = None
    static_space_logprobs: Floats | None = None

    def __len__(self) -> int:
        return len(self.logprobs)

    @property
    def total(self) -> float:
        """The log-probability of all tokens together."""
        return float(self.logprobs.sum(dtype=np.float64))

    def rows(self, index: slice) -> "TokenScores":
        """The chosen tokens."""
        columns: dict[str, Any] = {
            name: None if column is None else column[index] for name, column in vars(self).items()
        }
        return TokenScores(**columns)

    @staticmethod
    def concatenate(parts: Sequence["TokenScores"]) -> "TokenScores":
        """The parts one after the other. Raises ValueError when there is none."""
        if not parts:
            raise ValueError("there are no scores to concatenate")
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {
            name: None if first is None else np.concatenate([getattr(part, name) for part in parts])
            for name, first in vars(parts[0]).items()
        }
        return TokenScores(**columns)


def at_least_the_floor(logprobs: NDArray[Any]) -> Floats:
    """Log-probabilities as they are answered: float32, between the floor and 0."""
    floats: Floats = np.minimum(np.maximum(logprobs, LOGPROB_FLOOR), 0.0).astype(np.float32, copy=False)
    return floats


def of_any(log_probs_NV: Floats, ids: NDArray[np.intp]) -> Floats:
    """The log-probability ``[N]`` that a token is one of ``ids``."""
    with np.errstate(divide="ignore"):
        return at_least_the_floor(np.log(np.exp(log_probs_NV[:, ids]).sum(1, dtype=np.float64)))


def alternatives(log_probs_NV: Floats, top: int) -> tuple[NDArray[np.int64], Floats]:
    """The best ``top`` ids and their log-probabilities; ties go to the lower id, as in the ranks."""
    top = min(top, log_probs_NV.shape[1])
    # Two log-probabilities that are one float32 apart differ by more than this factor makes of one.
    keys_NV = log_probs_NV.astype(np.float64) * (1 + np.arange(log_probs_NV.shape[1]) * 2.0**-50)
    best_NK = np.argpartition(-keys_NV, top - 1, axis=1)[:, :top] if top < keys_NV.shape[1] else None
    if best_NK is None:
        ids_NK = np.argsort(-keys_NV, axis=1, kind="stable")
    else:
        order_NK = np.argsort(-np.take_along_axis(keys_NV, best_NK, 1), axis=1, kind="stable")
        ids_NK = np.take_along_axis(best_NK, order_NK, 1)
    return ids_NK.astype(np.int64), np.take_along_axis(log_probs_NV, ids_NK, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TextScores:
    """A text's tokens with their scores and spans, and its totals."""

    encoded: Encoded
    tokens: TokenScores
    bytes: int
    words: int

    @property
    def logprob(self) -> float:
        """The natural log-probability of the text."""
        return self.tokens.total

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of the text's UTF-8."""
        return -self.logprob / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """Per token; finite, because log-probabilities have a floor (it is cut at e^700)."""
        return math.exp(min(-self.logprob / len(self.tokens), 700.0))

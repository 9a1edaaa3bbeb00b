"""Choosing the next token from a distribution.

The order of the filters: repetition penalty, temperature, top-k, top-p, min-p; each works on what the one
before it left. All arithmetic is float64, and the random number is handed in, so that the same seed gives
the same token whatever else is in the batch. Shape suffix: V vocabulary.
"""

import hashlib
import math
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GREEDY_BELOW = 1e-3

_WORD = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How to choose.

    temperature          below 0.001 the most probable token is taken (ties: the lowest id)
    top_k                keep the k most probable tokens; 0 keeps all
    top_p                keep the fewest most probable tokens that together reach this probability
    min_p                keep tokens at least this times as probable as the most probable one
    repetition_penalty   log-probabilities of tokens seen before are multiplied by this
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, not {self.temperature}")
        if type(self.top_k) is not int or self.top_k < 0:
            raise ValueError(f"top_k must be an integer of at least 0, not {self.top_k!r}")
        for name in ("top_p", "min_p"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be finite and above 0, not {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, without chance."""
        return self.temperature < GREEDY_BELOW

    @property
    def filters(self) -> bool:
        """Whether some tokens are never taken."""
        return bool(self.top_k) or self.top_p < 1.0 or self.min_p > 0.0


def uniform(seed: int, choice: int, index: int) -> float:
    """The random number in [0, 1) for token ``index`` of answer ``choice``: a pure function of the three.

    The first 53 bits of their BLAKE2b hash: no state to carry, no order to keep. The arguments count modulo
    2^64.
    """
    counter = struct.pack("<3Q", seed & _WORD, choice & _WORD, index & _WORD)
    word = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
    return (word >> 11) * 2.0**-53


def sample(
    log_probs_V: NDArray[Any], config: SamplingConfig, uniform: float, seen: Collection[int] = ()
) -> int:
    """One token id by inverting the cumulative distribution at ``uniform`` in [0, 1).

    ``log_probs_V`` are natural log-probabilities ``[V]``; minus infinity is never chosen. ``seen`` are the
    ids that the repetition penalty acts on. Raises ArithmeticError on a distribution that is none (NaN).
    """
    if not math.isfinite(log_probs_V.max()):  # NaN too
        raise ArithmeticError("the next-token distribution is not finite")
    log_probs = _penalised(log_probs_V.astype(np.float64), config.repetition_penalty, seen)
    if config.greedy:
        return int(log_probs.argmax())
    scaled = (log_probs - log_probs.max()) / config.temperature
    if not config.filters:
        return _inverted(np.exp(scaled), uniform)
    order = np.argsort(-scaled, kind="stable")
    return int(order[_inverted(_filtered(np.exp(scaled[order]), config), uniform)])


def _inverted(probs: NDArray[np.float64], uniform: float) -> int:
    """The place where the cumulative distribution of unnormalised ``probs`` passes ``uniform``."""
    cumulative = probs.cumsum()
    return int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))


def _penalised(log_probs: NDArray[np.float64], penalty: float, seen: Collection[int]) -> NDArray[np.float64]:
    if penalty == 1.0 or not seen:
        return log_probs
    ids = np.fromiter(set(seen), dtype=np.int64)
    penalised = log_probs.copy()
    penalised[ids] *= penalty
    return penalised


def _filtered(probs: NDArray[np.float64], config: SamplingConfig) -> NDArray[np.float64]:
    """The kept head of ``probs``, which fall; unnormalised. The first always stays."""
    if config.top_k:
        probs = probs[: config.top_k]
    if config.top_p < 1.0:
        before = probs.cumsum() - probs
        kept = int(np.count_nonzero(before < config.top_p * probs.sum()))
        probs = probs[: max(1, kept)]
    if config.min_p > 0.0:
        probs = probs[probs >= config.min_p * probs[0]]
    return probs

"""The mixture of experts: Bayes over learning rates, with a decreasing share.

Nobody knows the right rate of a stream in advance, so a session reads its text with K experts at once and
predicts with their mixture (docs/adaptation.md §4; after Herbster & Warmuth 1998, Koolen & de Rooij 2013):

    p(w) = sum_k pi_k p_k(w)      pi_k <- pi_k p_k(w) / p(w)      pi_k <- (1 - a_t) pi_k + a_t / K

with a_t = 1 / (t + 2) for the token number t = 0, 1, ... of the session. The sums are taken by
:func:`rlstm_model.native.mix`, in float64; this is the state between calls. Weights are kept as
probabilities, not as logarithms: the share never leaves one below a_t / K, so none can underflow, and what
is stored is what answers show. An expert whose log-probability is NaN or plus infinity is broken: the others
predict the token without it, as if it had been impossible to that expert, and the caller restarts it.

The regret: T tokens cost the mixture at most ln K + ln(T + 1) nats more than any one of its experts, whatever
the probabilities (docs/adaptation.md §4). Tokens at which an expert was broken count as impossible to it.
Shape suffixes: S tokens of a segment, N sessions, K experts, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model import native
from rlstm_model.scores import Floats

_TOLERANCE = 1e-9


class MixtureState(NamedTuple):
    """The mixture of one stream: a value.

    weights  the probability pi of each expert, above 0; they sum to 1
    tokens   tokens read since the weights were equal: the t of the next token
    """

    weights: tuple[float, ...]
    tokens: int = 0

    @classmethod
    def start(cls, experts: int) -> "MixtureState":
        """Equal weights before any token."""
        return cls((1.0 / experts,) * experts)

    @property
    def experts(self) -> int:
        """K."""
        return len(self.weights)

    def drop(self, dropped: Sequence[bool]) -> "MixtureState":
        """After the dropped experts, of which one at least is left, have started anew.

        Their weights become 0, and then what a share gives: 1 / ((t + 1) K), as if the last of t tokens had
        been impossible to them. No other weight becomes smaller, so the bound on the regret against the other
        experts stays. Before any token all weights are equal, and remain so.
        """
        if not any(dropped):
            return self
        least = 1.0 / ((self.tokens + 1.0) * self.experts)
        left = math.fsum(weight for weight, out in zip(self.weights, dropped, strict=True) if not out)
        kept = (1.0 - sum(dropped) * least) / left
        weights = (
            least if out else max(weight * kept, least)
            for weight, out in zip(self.weights, dropped, strict=True)
        )
        return MixtureState(tuple(weights), self.tokens)

    def check(self) -> None:
        """Raise ValueError, naming what is wrong, unless reading could have led here.

        Weights must be finite and sum to 1 within 1e-9, and none may be below 1 / ((t + 1) K), which is what
        the share of the last of t tokens left: 1/K before the first.
        """
        if not self.weights or self.tokens < 0:
            raise ValueError(f"a mixture has experts and tokens, not {self.experts} and {self.tokens}")
        floor = (1.0 - _TOLERANCE) / ((self.tokens + 1) * self.experts)
        for expert, weight in enumerate(self.weights):
            if not math.isfinite(weight):
                raise ValueError(f"weight {expert} is not finite: {weight}")
            if weight < floor:
                raise ValueError(f"weight {expert} is {weight}, too small after {self.tokens} tokens")
        if abs(math.fsum(self.weights) - 1.0) > _TOLERANCE:
            raise ValueError(f"weights sum to {math.fsum(self.weights)}, not to 1")


def follow(
    mixture: MixtureState | None,
    experts: Sequence[Floats],
    ids: Sequence[int] | NDArray[np.int32],
    *,
    whole: bool = False,
    scores: bool = False,
) -> tuple[native.Mixed, MixtureState | None]:
    """A text's tokens in a mixture of experts, and the mixture after them; None is a single expert alone."""
    weights, tokens = (1.0,) if mixture is None else mixture.weights, 0 if mixture is None else mixture.tokens
    mixed = native.mix(
        experts, np.asarray(ids, np.int32), np.array(weights), tokens, scores=scores, whole=whole
    )
    after = None if mixture is None else MixtureState(tuple(mixed.weights_K.tolist()), mixed.tokens)
    return mixed, after

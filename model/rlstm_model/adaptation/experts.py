"""Scores of a stream's rows together: the mixture of its experts, and its static row beside it.

Shape suffixes: T tokens, R rows, K experts, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import Lineup
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.scoring import LOGPROB_FLOOR, TokenScores, score_log_probs


class Scored(NamedTuple):
    """Scores of the mixture, the static row's log-probabilities, and the mixture after the tokens."""

    scores: TokenScores
    static_logprobs: Tensor | None
    mixture: MixtureState | None


class Distributions(NamedTuple):
    """What R rows predict: log-probabilities ``[T, R, V]``, and those of the tokens that came, ``[T, R]``."""

    log_probs_TRV: Tensor
    targets_T: Tensor
    own_TR: Tensor

    @classmethod
    def of(cls, logits_TRV: Tensor, targets_T: Tensor) -> "Distributions":
        """From logits up to a constant."""
        log_probs_TRV = torch.log_softmax(logits_TRV, -1)
        column = targets_T[:, None, None].expand(-1, logits_TRV.shape[1], 1)
        return cls(log_probs_TRV, targets_T, log_probs_TRV.gather(-1, column)[..., 0])

    @property
    def broken(self) -> list[bool]:
        """Which rows computed no distribution: a bad logit makes all of it NaN, so the tokens' tell."""
        return [bool(bad) for bad in self.own_TR.isnan().any(0).tolist()]

    def score(
        self, lineup: Lineup, before: MixtureState | None, top: int = 0, *, logprobs_only: bool = False
    ) -> Scored:
        """Scores under a mixture; None stands for a single expert."""
        static = None
        if lineup.static:
            static = self.own_TR[:, 0].float().clamp(LOGPROB_FLOOR, 0.0).cpu()
        mixed_TV, after = mix(self.log_probs_TRV[:, lineup.mixed], self.own_TR[:, lineup.mixed], before)
        scores = score_log_probs(mixed_TV, self.targets_T, top, logprobs_only=logprobs_only)
        return Scored(scores, static, after)


def mix(
    log_probs_TKV: Tensor, own_TK: Tensor, before: MixtureState | None
) -> tuple[Tensor, MixtureState | None]:
    """The mixture's log-probabilities ``[T, V]`` at each token, and the mixture after them all.

    ``own_TK`` are the log-probabilities of the tokens that came.
    """
    if before is None:
        return log_probs_TKV[:, 0], None
    done = mixture.read(before, own_TK[:, None])
    at_each = MixtureState(done.weights_SNK[:, 0], done.state.tokens_N.expand(len(own_TK)))
    return mixture.mix(at_each, log_probs_TKV), done.state

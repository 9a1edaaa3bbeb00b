"""The learning rule; both terms use the old delta.

    delta <- delta - eta g / (RMS + epsilon) - min(1, lambda RMS / mean(RMS)) * delta

(Krause et al. 2017; mathematics: §8.1; adaptation: §1.) ``sgd`` is the same without RMS.
Shape suffixes: P fast weights.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.config import AdaptationConfig


class Step(NamedTuple):
    """The delta after a step, and its norm over the norm of the slow weights; ``projected`` if it was cut."""

    delta_P: Tensor
    norm_ratio: float
    projected: bool


class LearningRule:
    """The rule for one calibration: what does not change from step to step is worked out once."""

    def __init__(self, config: AdaptationConfig, rms_P: Tensor, slow_norm: float) -> None:
        """``slow_norm`` is that of the loaded weights. Raises ValueError when the RMS is needed and zero."""
        self.config = config
        self._max_norm = config.max_norm_ratio * slow_norm
        self._slow_norm = slow_norm
        self._precision_P: Tensor | None = None
        self._shrink = rms_P.new_tensor(min(1.0, config.decay))
        if config.rule == "rms":
            mean = rms_P.double().mean().item()
            if not mean > 0:
                raise ValueError("the gradient statistics are all zero")
            self._precision_P = 1.0 / (rms_P + config.epsilon * mean)
            if config.decay:
                self._shrink = (rms_P / mean * config.decay).clamp_(max=1.0)

    @property
    def idle(self) -> bool:
        """Whether no step can ever change anything."""
        return self.config.rate == 0 and self.config.decay == 0

    def step(self, delta_P: Tensor, gradient_P: Tensor, rate_scale: float) -> Step | None:
        """One step; None where it would not be finite. Its arguments are left as they are."""
        # A factor beyond the dtype's range would raise; the largest within it ends as a step not taken.
        rate = min(self.config.rate * rate_scale, torch.finfo(delta_P.dtype).max)
        kept_P = delta_P
        if self.config.decay:
            kept_P = torch.addcmul(delta_P, delta_P, self._shrink, value=-1)
        if self._precision_P is None:
            moved_P = torch.sub(kept_P, gradient_P, alpha=rate)
        else:
            moved_P = torch.addcmul(kept_P, gradient_P, self._precision_P, value=-rate)
        norm = torch.linalg.vector_norm(moved_P).item()
        if not norm < float("inf"):
            return None
        projected = norm > self._max_norm
        if projected:
            moved_P, norm = moved_P * (self._max_norm / norm), self._max_norm
        return Step(moved_P, norm / self._slow_norm if self._slow_norm else 0.0, projected)

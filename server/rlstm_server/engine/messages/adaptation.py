"""Nouns of learning: what a client asks for, and what it gets."""

from dataclasses import dataclass
from typing import Final

from rlstm_model.adaptation.adapted_state import ExpertConfig
from rlstm_model.adaptation.config import AdaptationConfig, Kind

DEFAULT_EXPERTS: Final = 2
"""Experts of a client that names no number and keeps the static one: that one, and one that learns."""


@dataclass(frozen=True, kw_only=True)
class AdaptationRequest:
    """What a client may ask of learning; everything else comes from the checkpoint.

    kind         of the fast weights, and
    num_fast_weights  how many: of the rules that the checkpoint has; None takes its first that fits
    experts      how many learning rates are mixed, the static one included; None takes the default
    rate_scale   multiplies the calibrated learning rate, 0 to 10; 0 never learns
    static       carry the static reference, so that static log-probs and the gain are exact
    """

    kind: Kind | None = None
    num_fast_weights: int | None = None
    experts: int | None = None
    rate_scale: float = 1.0
    static: bool = True

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that this asks for. Raises ValueError for a number of experts that cannot be."""
        default = DEFAULT_EXPERTS if self.static else 1
        return ExpertConfig(experts=default if self.experts is None else self.experts, static=self.static)


@dataclass(frozen=True, kw_only=True)
class AdaptationChoice:
    """How a text is learned from, with nothing left open; see :class:`AdaptationRequest`.

    rates  the learning rate of each expert, in the order of their weights; the static one's is 0
    """

    kind: Kind
    num_fast_weights: int
    experts: int
    rate_scale: float
    static: bool
    rates: tuple[float, ...]

    @classmethod
    def of(cls, rule: AdaptationConfig, expert_config: ExpertConfig, rate_scale: float) -> "AdaptationChoice":
        """Learning by a checkpoint's rule with these rows."""
        learning = [rule.rate * rate_scale * factor for factor in expert_config.rates]
        return cls(
            kind=rule.kind,
            num_fast_weights=rule.num_fast_weights,
            experts=expert_config.experts,
            rate_scale=rate_scale,
            static=expert_config.static,
            rates=(*(0.0 for _ in range(expert_config.experts - len(learning))), *learning),
        )

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that read the text."""
        return ExpertConfig(experts=self.experts, static=self.static)

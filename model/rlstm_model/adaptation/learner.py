"""What learns: one model under one calibration, without any stream of its own."""

from rlstm_model.adaptation.adapted_state import Cursor, ExpertConfig
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.graphs import graphed
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.rows import LearningRows
from rlstm_model.adaptation.rules import LearningRule
from rlstm_model.language_model import LanguageModel


class Learner:
    """Dynamic evaluation of one model under one calibration. The model's weights are never changed."""

    def __init__(
        self,
        model: LanguageModel,
        calibration: Calibration,
        *,
        bos_id: int,
        temperature: float = 1.0,
        logprobs_only: bool = False,
        graphs: bool = True,
    ) -> None:
        """``temperature`` multiplies the logits, in scores and in the loss that is learned from.

        ``logprobs_only`` gives no ranks and entropies, which take longer than all else over a large
        vocabulary. ``graphs``: on a CUDA device rows are read and taught by recorded graphs
        (:mod:`rlstm_model.adaptation.graphs`), which changes nothing but speed and rounding. Raises
        ValueError when the calibration is of another model, or its statistics allow no rule.
        """
        self.config = calibration.config
        self.model = model
        self.bos_id = bos_id
        self.logprobs_only = logprobs_only
        own = calibration.fast_weights(model)
        self.fast_weights = graphed(own) if graphs else own
        self.rows = LearningRows(self.fast_weights, temperature)
        rms_P = calibration.rms_P.to(model.embedding.input)
        self.rule = LearningRule(self.config, rms_P, self.fast_weights.slow_norm)

    def before_text(self, expert_config: ExpertConfig) -> Cursor:
        """Where all rows are before any text."""
        return Cursor(self.model.initial_state(expert_config.rows), self.bos_id)

    def equal_weights(self, expert_config: ExpertConfig) -> MixtureState | None:
        """The mixture before any text; None for a single expert."""
        device = self.model.embedding.input.device
        return None if expert_config.experts == 1 else MixtureState.start(1, expert_config.experts, device)

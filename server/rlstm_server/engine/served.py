"""A model that is served, and everything that belongs to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from rlstm_model.adaptation.calibration import CalibrationSet, NotCalibrated, load_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.adaptation.evaluator import AdaptedState, DynamicEvaluator
from rlstm_model.adaptation.reader import Reader, frozen_reader
from rlstm_model.checkpoint import Checkpoint
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_server.engine.numerics import numerics_id, rounds_agree
from rlstm_server.errors import InvalidField
from rlstm_server.schemas import AdaptationChoice, AdaptationRequest, EngineIdentity


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model with its vocabulary, and its calibration where it has one.

    Made before the device thread starts; from then on only that thread and its pool may compute with it.
    ``reader`` reads with the weights as loaded, from before any text.
    """

    name: str
    fingerprint: str
    model: LanguageModel
    vocab: Vocab
    calibrated: CalibrationSet | None
    card: str = ""
    reader: Reader = field(init=False)
    numerics: str = field(init=False)
    rounds_agree: bool = field(init=False)
    _evaluators: Mapping[AdaptationConfig, DynamicEvaluator] = field(init=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str | None = None) -> "ServedModel":
        """What a checkpoint holds, by its own name or another.

        Raises CalibrationError for a damaged calibration, or another model's.
        """
        file = checkpoint.adaptation_file
        return cls(
            name=name or checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            model=checkpoint.model,
            vocab=checkpoint.vocab,
            calibrated=None if file is None else load_calibration(file, checkpoint.model),
            card=checkpoint.card,
        )

    def __post_init__(self) -> None:
        evaluators = {}
        if self.calibrated is not None:
            for choice in self.calibrated.choices:
                calibration = self.calibrated.choose(choice.kind, choice.num_fast_weights)
                evaluators[choice] = DynamicEvaluator(self.model, calibration, bos_id=self.vocab.bos_id)
        object.__setattr__(self, "_evaluators", evaluators)
        object.__setattr__(self, "reader", frozen_reader(self.model, self.vocab.bos_id))
        learners: list[DynamicEvaluator | None] = [*evaluators.values()] or [None]
        # The default is what most sessions use; a test of every rule in every crowd would take a long start.
        agree = all(
            rounds_agree(self.reader, evaluator, crowds=1 if place else 3)
            for place, evaluator in enumerate(learners)
        )
        object.__setattr__(self, "rounds_agree", agree)
        object.__setattr__(self, "numerics", numerics_id(self.model, rounds_agree=agree))

    # ---- learning -----------------------------------------------------------------------------------------

    @property
    def rules(self) -> tuple[AdaptationConfig, ...]:
        """The checkpoint's rules, the default first; none for a model that cannot learn."""
        return tuple(self._evaluators)

    def evaluator(self, kind: Kind | None = None, num_fast_weights: int | None = None) -> DynamicEvaluator:
        """The evaluator of a kind and size of fast weights; None stands for any, first for the default.

        Raises InvalidField when the checkpoint has no rule for them; it names those there are.
        """
        if self.calibrated is None:
            raise InvalidField("adaptation", f"the model {self.name} has no calibration: it cannot learn")
        try:
            return self._evaluators[self.calibrated.find(kind, num_fast_weights)]
        except NotCalibrated as error:
            known = kind in (None, *(rule.kind for rule in self.rules))
            name = "adaptation.num_fast_weights" if known else "adaptation.kind"
            raise InvalidField(name, f"{name}: {error}") from error

    def choose(self, asked: AdaptationRequest) -> AdaptationChoice:
        """What is asked for, by the rules that the checkpoint has. Raises InvalidField."""
        rule = self.evaluator(asked.kind, asked.num_fast_weights).config
        try:
            return AdaptationChoice.of(rule, asked.expert_config, asked.rate_scale)
        except ValueError as error:
            raise InvalidField("adaptation.experts", f"adaptation.experts: {error}") from error

    def state_bytes(self, choice: AdaptationChoice) -> int:
        """Bytes of the tensors of a state that learns so, at their most: in the middle of a segment."""
        # Without rows nothing is computed, so this may be asked on any thread.
        recurrent = self.model.initial_state(0).h
        delta = self.evaluator(choice.kind, choice.num_fast_weights).fast_weights.zero(0)
        layers, _, hidden = recurrent.shape
        cursor = 2 * layers * hidden * recurrent.element_size()
        row = choice.num_fast_weights * delta.element_size()
        return 2 * choice.expert_config.rows * cursor + len(choice.expert_config.rates) * row

    def norm_ratio(self, choice: AdaptationChoice, adapted: AdaptedState) -> float:
        """The norm of the greatest row of fast weights over that of the slow weights."""
        fast_weights = self.evaluator(choice.kind, choice.num_fast_weights).fast_weights
        if adapted.delta_KP is None or not fast_weights.slow_norm:
            return 0.0
        norms_K = torch.linalg.vector_norm(adapted.delta_KP.float(), dim=1)
        return float(norms_K.max()) / fast_weights.slow_norm

    # ---- identity -----------------------------------------------------------------------------------------

    @property
    def adaptation_fingerprint(self) -> str | None:
        """The calibration's fingerprint; None without one."""
        return None if self.calibrated is None else self.calibrated.fingerprint

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.embedding.input.device

    @property
    def reproducible(self) -> bool:
        """Whether the same numerics always give the same bits; a GPU takes some sums in any order."""
        return self.device.type == "cpu"

    @property
    def identity(self) -> EngineIdentity:
        """What the numbers depend on."""
        return EngineIdentity(
            model=self.name,
            fingerprint=self.fingerprint,
            adaptation_fingerprint=self.adaptation_fingerprint,
            numerics=self.numerics,
        )

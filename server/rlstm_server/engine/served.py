"""The model that is served, and everything that belongs to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibrated, NotCalibrated
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.checkpoint import Checkpoint
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_server.engine.messages import EngineIdentity
from rlstm_server.engine.numerics import numerics_id
from rlstm_server.errors import InvalidField


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model with its vocabulary, and its calibration where it has one.

    Made before the device thread starts; from then on only that thread may compute with it.
    """

    name: str
    fingerprint: str
    model: LanguageModel
    vocab: Vocab
    calibrated: Calibrated | None
    numerics: str = field(init=False)
    _adapters: Mapping[AdaptationConfig, Adapter] = field(init=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "ServedModel":
        """What a checkpoint holds. Raises CalibrationError for a damaged calibration, or another model's."""
        file = checkpoint.adaptation_file
        return cls(
            name=checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            model=checkpoint.model,
            vocab=checkpoint.vocab,
            calibrated=None if file is None else load_calibration(file, checkpoint.model),
        )

    def __post_init__(self) -> None:
        adapters = {}
        if self.calibrated is not None:
            for choice in self.calibrated.choices:
                calibration = self.calibrated.choose(choice.kind, choice.coordinates)
                adapters[choice] = Adapter(self.model, calibration, bos_id=self.vocab.bos_id)
        object.__setattr__(self, "_adapters", adapters)
        object.__setattr__(self, "numerics", numerics_id(self.model))

    def adapter(self, kind: Kind | None = None, coordinates: int | None = None) -> Adapter:
        """The adapter of a kind and size of fast weights; None stands for any, first for the default.

        Raises InvalidField when the checkpoint has no rule for them.
        """
        if self.calibrated is None:
            raise InvalidField("adaptation", f"the model {self.name} has no calibration: it cannot learn")
        try:
            return self._adapters[self.calibrated.find(kind, coordinates)]
        except NotCalibrated as error:
            raise InvalidField("adaptation", str(error)) from error

    @property
    def adaptation_fingerprint(self) -> str | None:
        """The calibration's fingerprint; None without one."""
        return None if self.calibrated is None else self.calibrated.fingerprint

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.embedding.input.device

    @property
    def identity(self) -> EngineIdentity:
        """What the numbers depend on."""
        return EngineIdentity(
            model=self.name,
            fingerprint=self.fingerprint,
            adaptation_fingerprint=self.adaptation_fingerprint,
            numerics=self.numerics,
        )

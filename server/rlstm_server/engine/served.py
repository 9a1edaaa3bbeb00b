"""The model that is served, and everything that belongs to it."""

from dataclasses import dataclass, field

import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.reader import Reader, static_reader
from rlstm_model.checkpoint import Checkpoint
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_server.engine.messages import EngineIdentity
from rlstm_server.engine.numerics import numerics_id, rounds_agree
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
    calibration: Calibration | None
    numerics: str = field(init=False)
    rounds_agree: bool = field(init=False)
    _adapter: Adapter | None = field(init=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "ServedModel":
        """What a checkpoint holds. Raises CalibrationError for a damaged calibration, or another model's."""
        file = checkpoint.adaptation_file
        return cls(
            name=checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            model=checkpoint.model,
            vocab=checkpoint.vocab,
            calibration=None if file is None else Calibration.load(file, checkpoint.model),
        )

    def __post_init__(self) -> None:
        adapter = None
        if self.calibration is not None:
            adapter = Adapter(self.model, self.calibration, bos_id=self.vocab.bos_id)
        object.__setattr__(self, "_adapter", adapter)
        agree = rounds_agree(self.reader, adapter)
        object.__setattr__(self, "rounds_agree", agree)
        object.__setattr__(self, "numerics", numerics_id(self.model, rounds_agree=agree))

    @property
    def reader(self) -> Reader:
        """The weights as loaded, before any text."""
        return static_reader(self.model, self.vocab.bos_id)

    @property
    def adapter(self) -> Adapter:
        """The model's adapter. Raises InvalidField when the checkpoint has no calibration."""
        if self._adapter is None:
            raise InvalidField("adaptation", f"the model {self.name} has no calibration: it cannot learn")
        return self._adapter

    @property
    def adaptation_fingerprint(self) -> str | None:
        """The calibration's fingerprint; None without one."""
        return None if self.calibration is None else self.calibration.fingerprint

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

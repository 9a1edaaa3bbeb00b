"""The models of one server, each with everything that belongs to it, and the identity of their numbers.

The models share the device thread, whose batches hold items of all of them; a session belongs to one for
good. What a batch gives a stream is, to the last bit, what the stream gets alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlstm_model import native
from rlstm_model.adaptation.backend import Backend, NativeBackend
from rlstm_model.adaptation.calibration import Calibration, CalibrationSet, NotCalibrated
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.adaptation.evaluator import DynamicEvaluator, Reader, reader_of
from rlstm_model.checkpoint import Checkpoint, likely
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import Vocab
from rlstm_model.vocab.base import space_ids
from rlstm_server.errors import InvalidField, ModelMismatch, ModelNotFound
from rlstm_server.schemas.text import AdaptationChoice, AdaptationRequest, EngineIdentity

Device: TypeAlias = Literal["cpu", "cuda"]

Identity: TypeAlias = tuple[str, str]
"""The fingerprints of a model and of its calibration; the latter is empty without one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model with its vocabulary, and its calibration where it has one.

    Made before the device thread starts; from then on only that thread may compute with it.
    ``reader`` reads with the weights as loaded, from before any text; ``identity`` is what numbers depend on.
    """

    name: str
    fingerprint: str
    parameters: Parameters
    vocab: Vocab
    calibrated: CalibrationSet | None
    card: str = ""
    device: Device = "cpu"
    reader: Reader = field(init=False)
    identity: EngineIdentity = field(init=False)
    _evaluators: Mapping[AdaptationConfig, DynamicEvaluator] = field(init=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str | None = None, device: Device = "cpu") -> "ServedModel":
        """What a checkpoint holds, by its own name or another.

        Raises CalibrationError for a damaged calibration, or another model's; NativeUnavailable.
        """
        file = checkpoint.adaptation_file
        return cls(
            name=name or checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            parameters=checkpoint.parameters,
            vocab=checkpoint.vocab,
            calibrated=None if file is None else load_calibration(file, checkpoint.parameters.config),
            card=checkpoint.card,
            device=device,
        )

    def __post_init__(self) -> None:
        evaluators = {}
        if self.calibrated is not None:
            for choice in self.calibrated.choices:
                calibration = self.calibrated.choose(choice.kind, choice.num_fast_weights)
                backend = self._backend(calibration)
                evaluators[choice] = DynamicEvaluator(
                    backend, calibration, self.parameters.norm, self.vocab.bos_id
                )
        object.__setattr__(self, "_evaluators", evaluators)
        object.__setattr__(self, "reader", reader_of(self._backend(None), self.vocab.bos_id))
        identity = EngineIdentity(
            model=self.name,
            fingerprint=self.fingerprint,
            adaptation_fingerprint=None if self.calibrated is None else self.calibrated.fingerprint,
            numerics=numerics_id(self.device),
        )
        object.__setattr__(self, "identity", identity)

    def _backend(self, calibration: Calibration | None) -> Backend:
        if self.device == "cpu":
            return NativeBackend(self.parameters, calibration)
        from rlstm_model.torch_backend.backend import TorchBackend  # the extra `gpu`

        return TorchBackend.of(self.parameters, calibration, device=self.device)

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
            message = f"the model {self.name} has no calibration: it cannot learn"
            raise InvalidField("adaptation", f"{message} (rlstm calibrate FOLDER --corpus TEXT)")
        try:
            return self._evaluators[self.calibrated.find(kind, num_fast_weights)]
        except NotCalibrated as error:
            known = kind in (None, *(rule.kind for rule in self.rules))
            name = "adaptation.num_fast_weights" if known else "adaptation.kind"
            raise InvalidField(name, f"{name}: {error}") from error

    def choose(self, asked: AdaptationRequest) -> AdaptationChoice:
        """What is asked for, by the rules that the checkpoint has. Raises InvalidField."""
        rule = self.evaluator(asked.kind, asked.num_fast_weights).calibration.config
        try:
            return AdaptationChoice.of(rule, asked.expert_config, asked.rate_scale)
        except ValueError as error:
            raise InvalidField("adaptation.experts", f"adaptation.experts: {error}") from error

    def state_bytes(self, choice: AdaptationChoice) -> int:
        """Bytes of the arrays of a state that learns so, at their most: in the middle of a segment."""
        schema = self.evaluator(choice.kind, choice.num_fast_weights).state_schema
        layout = schema.layout(choice.expert_config, pending=True).values()
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout)

    @cached_property
    def spaces(self) -> NDArray[np.intp]:
        """The tokens that begin with white space."""
        return space_ids(self.vocab)


def check_apart(names: Sequence[str], identities: Sequence[Identity]) -> None:
    """Raise ValueError for two models of the same name, or that `name:adapt` could be; and for one twice.

    `name@session` is a session, and `@` belongs to it.
    """
    if len({*names}) < len(names):
        raise ValueError("two models have the same name")
    if marked := [name for name in names if ":" in name or "@" in name]:
        raise ValueError(f"{marked[0]!r}: a model's name has no colon and no @; NAME=FOLDER gives it another")
    if len({*identities}) < len(identities):
        raise ValueError("the same model is there twice")


class Models:
    """Served models in the order they were given; the first is the default."""

    def __init__(self, default: ServedModel, *others: ServedModel) -> None:
        """Raises ValueError for two of the same name, for the same one twice, and for several devices."""
        served = (default, *others)
        names = [one.name for one in served]
        identities = [(one.fingerprint, one.identity.adaptation_fingerprint or "") for one in served]
        check_apart(names, identities)
        self.default: Final = default
        self._by_name = dict(zip(names, served, strict=True))
        self._by_identity = dict(zip(identities, served, strict=True))
        if len({one.device for one in served}) > 1:
            raise ValueError("the models are on several devices")

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def named(self, name: str | None) -> ServedModel:
        """The model of a name; None is the default. Raises ModelNotFound, which names the nearest."""
        if name is None:
            return self.default
        try:
            return self._by_name[name]
        except KeyError:
            names = likely(name, self._by_name)
            raise ModelNotFound(f"model: no such model is served; these are: {names}") from None

    def with_identity(self, fingerprint: str | None, adaptation_fingerprint: str | None) -> ServedModel:
        """The model, with the calibration, that a state was computed with. Raises ModelMismatch.

        Descriptions of sessions did not always say it: without a fingerprint it is the default.
        """
        if fingerprint is None:
            return self.default
        found = self._by_identity.get((fingerprint, adaptation_fingerprint or ""))
        if found is not None:
            return found
        if any(fingerprint == known for known, _ in self._by_identity):
            raise ModelMismatch("the session's state belongs to another calibration of the model")
        raise ModelMismatch("the session's state belongs to another model")

    @property
    def device(self) -> Device:
        """What computes."""
        return self.default.device


# ---- what computes, and the identity of its numbers -----------------------------------------------------


def finds_gpu() -> bool:
    """Whether torch is here (the extra `gpu`) and finds a CUDA device."""
    try:
        from rlstm_model.torch_backend.backend import finds_gpu
    except ModuleNotFoundError:
        return False
    return finds_gpu()


def numerics_id(device: Device) -> str:
    """What decides the bits, such as ``native-fma-r1``, or the name of a GPU and its torch.

    Two servers with the same id give a session the same scores to the last bit, on a CPU; others agree to
    about 1e-4 nats a token.
    """
    if device == "cpu":
        return f"native-{native.identity()}"
    from rlstm_model.torch_backend.backend import identity

    return identity(device)

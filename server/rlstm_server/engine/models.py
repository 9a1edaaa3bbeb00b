"""The models of one server: found by the names that clients call them, and by what a state was computed with.

They share the device thread, whose rounds hold works of all of them; a session belongs to one for good.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import torch

from rlstm_server.engine.served import ServedModel
from rlstm_server.errors import ModelMismatch, ModelNotFound

Identity: TypeAlias = tuple[str, str]
"""The fingerprints of a model and of its calibration; the latter is empty without one."""


def check_apart(names: Sequence[str], identities: Sequence[Identity]) -> None:
    """Raise ValueError for two models of the same name, or that `name:adapt` could be; and for one twice."""
    if len({*names}) < len(names):
        raise ValueError("two models have the same name")
    if coloned := [name for name in names if ":" in name]:
        raise ValueError(f"{coloned[0]!r}: a model's name has no colon; NAME=FOLDER gives it another")
    if len({*identities}) < len(identities):
        raise ValueError("the same model is there twice")


class Models:
    """Served models in the order they were given; the first is the default."""

    def __init__(self, default: ServedModel, *others: ServedModel) -> None:
        """Raises ValueError for two of the same name, for the same one twice, and for several devices."""
        served = (default, *others)
        names = [one.name for one in served]
        identities = [(one.fingerprint, one.adaptation_fingerprint or "") for one in served]
        check_apart(names, identities)
        self.default: Final = default
        self._by_name = dict(zip(names, served, strict=True))
        self._by_identity = dict(zip(identities, served, strict=True))
        if len({one.device for one in served}) > 1:
            raise ValueError("the models are on several devices")

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def named(self, name: str | None) -> ServedModel:
        """The model of a name; None is the default. Raises ModelNotFound, which names those there are."""
        if name is None:
            return self.default
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(self._by_name)
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
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.default.device

    @property
    def rounds_agree(self) -> bool:
        """Whether any works can share a round, whoever's they are, with the bits that they have alone."""
        return all(one.rounds_agree for one in self)

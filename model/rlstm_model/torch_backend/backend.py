"""Rows of a batch in torch: on a GPU by recorded graphs, whose rows are padded to buckets.

The interface and, to rounding, the numbers of :class:`~rlstm_model.adaptation.backend.NativeBackend`.
Fast weights and states go to the device and come back with every window, so that a state is an array wherever
it was computed. Shape suffixes: T tokens, N rows, L layers, H hidden units, P fast weights.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.native import Row, Step, Window
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State
from rlstm_model.parameters import Parameters
from rlstm_model.torch_backend.fast_weights import FastWeights, FrozenWeights, FullFastWeights, slow_norm
from rlstm_model.torch_backend.graphs import graphed
from rlstm_model.torch_backend.rules import LearningRule
from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

REVISION = 2
"""Of what is computed, by the last bit: it grows when a change of ours changes one."""


class TorchBackend:
    """See :class:`~rlstm_model.adaptation.backend.Backend`."""

    def __init__(
        self,
        model: LanguageModel,
        calibration: Calibration | None = None,
        *,
        temperature: float = 1.0,
    ) -> None:
        """``model`` in float32, where it is to compute."""
        self.vocab_size = model.config.vocab_size
        widest, widths = model.config.hidden_size, model.config.layer_widths
        self._units = np.concatenate([widest * i + np.arange(n) for i, (_, n) in enumerate(widths)])
        self.units = len(self._units)
        self.fast_weights = 0 if calibration is None else calibration.config.num_fast_weights
        self.dtype: type = np.float32 if calibration is None else calibration.space.dtype
        self._temperature = temperature
        self._device = model.embedding.input.device
        self._weights = graphed(FrozenWeights(model) if calibration is None else _kind(model, calibration))
        self._rule: LearningRule | None = None
        if calibration is not None:
            self._rule = LearningRule(calibration.rule(slow_norm(model)), self._device)

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        calibration: Calibration | None = None,
        *,
        temperature: float = 1.0,
        device: str = "cpu",
    ) -> "TorchBackend":
        """The same of arrays, on a device by torch's name."""
        return cls(LanguageModel.of(parameters).to(device), calibration, temperature=temperature)

    def read(self, rows: Sequence[Row]) -> list[Window]:
        """See :class:`~rlstm_model.adaptation.backend.Backend`."""
        alike: dict[tuple[bool, int, bool], list[int]] = {}
        for i, row in enumerate(rows):
            alike.setdefault((bool(row.targets), len(row.ids), row.delta_P is not None), []).append(i)
        done: dict[int, Window] = {}
        for (learns, _, _), places in alike.items():
            for start in range(0, len(places), self._weights.at_once):
                some = places[start : start + self._weights.at_once]
                given = [rows[i] for i in some]
                done |= zip(some, self._learn(given) if learns else self._read(given), strict=True)
        return [done[i] for i in range(len(rows))]

    def _read(self, rows: Sequence[Row]) -> list[Window]:
        ids_TN, state, delta_NP = self._given(rows)
        logits_TNV, after = self._weights.read(delta_NP, ids_TN, state, temperature=self._temperature)
        return self._reads(rows, logits_TNV, after, [None] * len(rows))

    def _learn(self, rows: Sequence[Row]) -> list[Window]:
        if self._rule is None:
            raise ValueError("without a calibration nothing is learned")
        ids_TN, state, delta_NP = self._given(rows)
        learned = self._weights.learn(
            delta_NP,
            ids_TN,
            self._columns([row.targets for row in rows], torch.int64),
            self._columns([row.loss_weights for row in rows], torch.float32),
            state,
            temperature=self._temperature,
        )
        kept_NP = self._stacked([row.delta_P for row in rows])
        gradient_NP = learned.gradient_NP[: len(rows)]
        rates = [row.rate or 0.0 for row in rows]
        steps = self._rule.step(kept_NP, gradient_NP, rates)
        for i, (row, step) in enumerate(zip(rows, steps, strict=True)):
            if row.into_P is not None:
                row.into_P[:] = step.delta_P
                steps[i] = step._replace(delta_P=row.into_P)
        return self._reads(rows, learned.logits_TNV, learned.state, steps)

    def _given(self, rows: Sequence[Row]) -> tuple[Tensor, State, Tensor | None]:
        """Ids, states and fast weights, with rows that are none up to a whole tile."""
        padded = [*rows, *(-len(rows) % self._weights.tile) * [self._nothing(rows[0])]]
        config = self._weights.model.config
        states_N2LH = np.zeros((len(padded), 2, config.num_layers * config.hidden_size), np.float32)
        states_N2LH[:, :, self._units] = [row.states_2U for row in padded]
        states = torch.from_numpy(states_N2LH).view(len(padded), 2, config.num_layers, -1).to(self._device)
        h, c = states.permute(1, 2, 0, 3).contiguous()
        delta_NP = None
        if rows[0].delta_P is not None:
            delta_NP = self._stacked([row.delta_P for row in padded]).to(self._weights.dtype)
        return self._columns([row.ids for row in padded], torch.int64), State(h, c), delta_NP

    def _nothing(self, like: Row) -> Row:
        length = len(like.ids)
        return Row((0,) * length, np.zeros_like(like.states_2U), like.delta_P)

    def _stacked(self, deltas: Sequence[NDArray[Any] | None]) -> Tensor:
        zero: NDArray[Any] = np.zeros(self.fast_weights, self.dtype)
        whole = np.stack([zero if delta_P is None else delta_P for delta_P in deltas])
        return torch.from_numpy(whole).to(self._device)

    def _columns(self, values: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
        """``[T, N]`` from as many values for each row, with zeros up to a whole tile of rows."""
        more = -len(values) % self._weights.tile
        whole = [*map(list, values), *([0] * len(values[0]) for _ in range(more))]
        return torch.tensor(whole, dtype=dtype).t().contiguous().to(self._device)

    def _reads(
        self, rows: Sequence[Row], logits_TNV: Tensor, after: State, steps: Sequence[Step | None]
    ) -> list[Window]:
        count = len(rows)
        log_probs_NTV = torch.log_softmax(logits_TNV[:, :count], -1).transpose(0, 1).cpu().numpy()
        h, c = (part[:, :count].permute(1, 0, 2).flatten(1).cpu().numpy()[:, self._units] for part in after)
        return [Window(log_probs_NTV[n], np.stack((h[n], c[n])), steps[n]) for n in range(count)]


def finds_gpu() -> bool:
    """Whether there is a CUDA device that torch can use."""
    return torch.cuda.is_available()


def identity(device: str) -> str:
    """What tells machines apart whose bits differ: the GPU, the torch that computes, and the revision."""
    name = torch.cuda.get_device_name(device).replace(" ", "_")
    return f"torch{torch.__version__}-{name}-r{REVISION}"


def _kind(model: LanguageModel, calibration: Calibration) -> FastWeights:
    space, device = calibration.space, model.embedding.input.device
    if space.whole:
        return FullFastWeights(model)
    bases = {
        name: Basis(torch.from_numpy(axes.left).to(device), torch.from_numpy(axes.right).to(device))
        for name, axes in space.axes.items()
    }
    chosen_P = None if space.chosen_P is None else torch.from_numpy(space.chosen_P).to(device)
    return SubspaceFastWeights(model, bases, space.biases, chosen_P)

"""Monte-Carlo dropout: evaluation with dropout left on, averaged over samples (docs/mathematics.md §2.14).

arithmetic  p(w) = 1/N sum_n p_n(w): each sample is a full pass with masks and state of its own; where it
            learns, it begins with the weights as loaded and learns under its own masks
geometric   p(w) ~ exp(1/N sum_n ln p_n(w)): the state is that of the model without dropout, and every
            token is predicted from it N times

Masks are fresh at every step, those of the state at every window. An average over probabilities has to be
taken before the logarithm: the mean of logarithms would be a worse and a different number.
Shape suffixes: N tokens, T time, B batch rows, D dropout samples, L layers, H hidden units, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks, DropoutRates, sample_masks
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State
from rlstm_model.scores import LOGPROB_FLOOR
from rlstm_training.evaluation.evaluation import Advance, evaluator_of, no_advance

_ROWS_AT_ONCE = 32
_LOGITS_AT_ONCE = 1 << 23


@dataclass(frozen=True, kw_only=True)
class MonteCarlo:
    """How to sample. ``rates`` are those of evaluation: best at 0.6 to 0.9 of training's.

    ``window`` is how many steps the state's masks stay the same, where no segment length says it.
    """

    samples: int
    rates: DropoutRates
    averaging: Literal["arithmetic", "geometric"] = "arithmetic"
    window: int = 70
    seed: int = 1


def scaled(rates: DropoutRates, factor: float) -> DropoutRates:
    """All rates multiplied. Raises ValueError when one leaves [0, 1)."""
    return DropoutRates(**{name: rate * factor for name, rate in asdict(rates).items()})


class DroppingModel(LanguageModel):
    """A model that drops units whenever it reads a window; it shares its weights with the given one."""

    def __init__(self, model: LanguageModel, rates: DropoutRates, generator: torch.Generator) -> None:
        with torch.device("meta"):
            super().__init__(model.config)
        self.embedding, self.stack = model.embedding, model.stack
        self._rates, self._generator = rates, generator

    def read(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, State]:
        """See :meth:`LanguageModel.read`; the masks are its own."""
        time, batch = x_TBH.shape[:2]
        drawn = sample_masks(
            self._rates,
            time=time,
            batch=batch,
            layers=self.config.num_layers,
            hidden=self.config.hidden_size,
            like=x_TBH.detach(),
            generator=self._generator,
        )
        return super().read(x_TBH, state, drawn, precision=precision)


class Text:
    """A model and the text that it reads, behind the token that begins all text."""

    def __init__(
        self, model: LanguageModel, ids: Sequence[int], bos_id: int, temperature: float = 1.0
    ) -> None:
        self.model, self.ids, self.bos_id, self.temperature = model, ids, bos_id, temperature
        self.targets_N = torch.tensor(ids, device=model.embedding.input.device)
        self.inputs_N = torch.cat((self.targets_N.new_tensor([bos_id]), self.targets_N[:-1]))

    def windows(self, length: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Where each window stands, its inputs and its targets."""
        for start in range(0, len(self.inputs_N), length):
            place = slice(start, start + length)
            yield place, self.inputs_N[place], self.targets_N[place]


def sampled_log_probs(text: Text, sampling: MonteCarlo, advance: Advance = no_advance) -> Tensor:
    """Log-probabilities of a text's tokens, ``[N]`` in float64, averaged over samples.

    ``advance`` hears of tokens read, in all samples together where the mean is arithmetic.
    """
    if sampling.averaging == "geometric":
        return _geometric(text, sampling, advance)
    return _arithmetic(text, sampling, advance)


def sampled_adapted_log_probs(
    text: Text,
    calibration: Calibration,
    sampling: MonteCarlo,
    rate_scale: float = 1.0,
    advance: Advance = no_advance,
) -> Tensor:
    """The same for weights that follow the text: the arithmetic mean over new sessions."""
    model = DroppingModel(text.model, sampling.rates, _generator(text.model, sampling))
    evaluator = evaluator_of(model, calibration, bos_id=text.bos_id, temperature=text.temperature)
    total_N = torch.full((len(text.ids),), -math.inf, dtype=torch.float64)
    for _ in range(sampling.samples):
        state, columns = evaluator.start(rate_scale=rate_scale, static=False), []
        for observed in evaluator.observe(state, text.ids):
            columns.append(observed.scores.logprobs)
            advance(len(observed.scores))
        total_N = torch.logaddexp(total_N, torch.from_numpy(np.concatenate(columns)).double())
    return total_N - math.log(sampling.samples)


@torch.no_grad()
def _arithmetic(text: Text, sampling: MonteCarlo, advance: Advance) -> Tensor:
    """Samples are rows of a batch: rows have masks and states of their own."""
    model = DroppingModel(text.model, sampling.rates, _generator(text.model, sampling))
    total_N = torch.full((len(text.targets_N),), -math.inf, dtype=torch.float64)
    for first in range(0, sampling.samples, _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, sampling.samples - first)
        state = model.initial_state(rows)
        for place, inputs_T, targets_T in text.windows(sampling.window):
            features_TBH, state = model(inputs_T[:, None].expand(-1, rows), state)
            log_probs_TB = _log_probs(model, features_TBH, targets_T, text.temperature)
            total_N[place] = torch.logaddexp(total_N[place], torch.logsumexp(log_probs_TB, 1))
            advance(log_probs_TB.numel())
    return total_N - math.log(sampling.samples)


@torch.no_grad()
def _geometric(text: Text, sampling: MonteCarlo, advance: Advance) -> Tensor:
    """Each step's samples are rows that begin with the same state."""
    model, samples, nats = text.model, sampling.samples, []
    generator, state = _generator(model, sampling), model.initial_state(1)
    for _, inputs_T, targets_T in text.windows(sampling.window):
        masks = sample_masks(
            sampling.rates,
            time=len(inputs_T),
            batch=samples,
            layers=model.config.num_layers,
            hidden=model.config.hidden_size,
            like=model.embedding.input,
            generator=generator,
        )
        for step, (token, target) in enumerate(zip(inputs_T, targets_T, strict=True)):
            own = _of_step(masks, slice(step, step + 1))
            features_1DH, _ = model(token.expand(1, samples), state.expand(samples), own)
            logits_V = model.logits(features_1DH, text.temperature).mean((0, 1))
            nats.append(torch.log_softmax(logits_V, -1)[target].double())
            _, state = model(token[None, None], state)
        advance(len(inputs_T))
    return torch.stack(nats).cpu()


def _log_probs(model: LanguageModel, features_TBH: Tensor, targets_T: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of targets in every row, ``[T, B]`` in float64, some steps at once."""
    steps = max(1, _LOGITS_AT_ONCE // (model.config.vocab_size * features_TBH.shape[1]))
    parts = []
    for some_TBH, some_T in zip(torch.split(features_TBH, steps), torch.split(targets_T, steps), strict=True):
        log_probs_TBV = torch.log_softmax(model.logits(some_TBH, temperature), -1)
        index_TB1 = some_T[:, None, None].expand(-1, log_probs_TBV.shape[1], 1)
        parts.append(log_probs_TBV.gather(2, index_TB1)[..., 0].double().clamp(LOGPROB_FLOOR, 0.0).cpu())
    return torch.cat(parts)


def _of_step(masks: DropoutMasks, step: slice) -> DropoutMasks:
    return DropoutMasks(
        input=None if masks.input is None else masks.input[step],
        cell=None if masks.cell is None else masks.cell[:, step],
        state=masks.state,
        output=None if masks.output is None else masks.output[step],
    )


def _generator(model: LanguageModel, sampling: MonteCarlo) -> torch.Generator:
    return torch.Generator(model.embedding.input.device).manual_seed(sampling.seed)

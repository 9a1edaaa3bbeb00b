"""The softmax temperature: chosen on validation text, without learning.

It *multiplies* the logits, so it is the inverse of what physics calls one, and the best is usually a little
below 1: an overfitted model is too sure of itself (mathematics: §2.13).
Shape suffixes: N tokens of one text, H hidden units.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, no_advance

TEMPERATURES = tuple(round(1.06 - 0.02 * step, 2) for step in range(14))
PATIENCE = 2

_WINDOW = 256
_LOGITS_AT_ONCE = 1 << 21

Measure = Callable[[float], float]


def search_temperature(
    measure: Measure, temperatures: Sequence[float] = TEMPERATURES, *, patience: int = PATIENCE
) -> Iterator[tuple[float, float]]:
    """Pairs of a temperature and its loss, in order, until ``patience`` of them in a row bring no better one.

    The best is the pair with the least loss. A loss that is no number is no improvement.
    """
    least, waited = math.inf, 0
    for temperature in temperatures:
        loss = measure(temperature)
        yield temperature, loss
        waited = 0 if loss < least else waited + 1
        least = min(least, loss)
        if waited == patience:
            return


def static_losses(
    model: LanguageModel,
    passages: Sequence[Passage],
    *,
    bos_id: int,
    advance: Advance = no_advance,
) -> Measure:
    """The measure for :func:`search_temperature`: mean nats a token of texts, each from its beginning.

    They are read once, with the weights as loaded; what a temperature changes comes after the features.
    """
    read = [_features(model, passage.ids, bos_id, advance) for passage in passages]
    tokens = sum(len(passage.ids) for passage in passages)

    def nats_a_token(temperature: float) -> float:
        return math.fsum(_loss(model, *text, temperature) for text in read) / tokens

    return nats_a_token


@torch.no_grad()
def _features(
    model: LanguageModel, ids: Sequence[int], bos_id: int, advance: Advance
) -> tuple[Tensor, Tensor]:
    """Features ``[N, H]`` from which the tokens ``[N]`` are predicted: the first one follows ``bos_id``."""
    targets_N = torch.tensor(ids, device=model.embedding.input.device)
    inputs_N1 = torch.cat((targets_N.new_tensor([bos_id]), targets_N[:-1]))[:, None]
    state, parts = model.initial_state(1), []
    for window in torch.split(inputs_N1, _WINDOW):
        features_T1H, state = model(window, state)
        parts.append(features_T1H[:, 0])
        advance(len(window))
    return torch.cat(parts), targets_N


@torch.no_grad()
def _loss(model: LanguageModel, features_NH: Tensor, targets_N: Tensor, temperature: float) -> float:
    rows = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    losses = (
        torch.nn.functional.cross_entropy(model.logits(features, temperature), targets, reduction="none")
        for features, targets in zip(
            torch.split(features_NH, rows), torch.split(targets_N, rows), strict=True
        )
    )
    return math.fsum(float(part.double().sum()) for part in losses)

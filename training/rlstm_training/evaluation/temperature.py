"""The softmax temperature: chosen on validation text, without learning.

It *multiplies* the logits, so it is the inverse of what physics calls one, and the best is usually a little
below 1: an overfitted model is too sure of itself (docs/mathematics.md §2.13).
Shape suffixes: N tokens, T time, H hidden units.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, no_advance

TEMPERATURES = tuple(round(1.06 - 0.02 * step, 2) for step in range(14))
PATIENCE = 2

_WINDOW = 256
_LOGITS_AT_ONCE = 1 << 21


def search_temperature(measure: Callable[[float], float]) -> Iterator[tuple[float, float]]:
    """Pairs of a temperature and its loss, in order, until two of them in a row bring no better one.

    The best is the pair with the least loss. A loss that is no number is no improvement.
    """
    least, waited = math.inf, 0
    for temperature in TEMPERATURES:
        loss = measure(temperature)
        yield temperature, loss
        waited = 0 if loss < least else waited + 1
        least = min(least, loss)
        if waited == PATIENCE:
            return


@torch.no_grad()
def static_losses(
    model: LanguageModel, passages: Sequence[Passage], *, bos_id: int, advance: Advance = no_advance
) -> Callable[[float], float]:
    """The measure for :func:`search_temperature`: mean nats a token of texts, each from its beginning.

    They are read once, with the weights as loaded; what a temperature changes comes after the features.
    """
    rows = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    read: list[tuple[Tensor, Tensor]] = []
    for passage in passages:
        ids_N = torch.tensor([bos_id, *passage.ids], device=model.embedding.input.device)
        state, features = model.initial_state(1), []
        for window in torch.split(ids_N[:-1, None], _WINDOW):
            features_T1H, state = model(window, state)
            features.append(features_T1H[:, 0])
            advance(len(window))
        read += zip(torch.split(torch.cat(features), rows), torch.split(ids_N[1:], rows), strict=True)
    tokens = sum(len(passage.ids) for passage in passages)

    @torch.no_grad()
    def nats_a_token(temperature: float) -> float:
        losses = (
            cross_entropy(model.logits(features_NH, temperature), targets_N, reduction="none")
            for features_NH, targets_N in read
        )
        return math.fsum(float(loss.double().sum()) for loss in losses) / tokens

    return nats_a_token

"""The softmax temperature: chosen on validation text, without learning.

It *multiplies* the logits, so it is the inverse of what physics calls one, and the best is usually a little
below 1: an overfitted model is too sure of itself (docs/mathematics.md §2.13).
"""

import math
from collections.abc import Callable, Iterator, Sequence

from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import read_static

TEMPERATURES = tuple(round(1.06 - 0.02 * step, 2) for step in range(14))
PATIENCE = 2


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


def static_losses(
    model: LanguageModel, passages: Sequence[Passage], *, bos_id: int
) -> Callable[[float], float]:
    """The measure for :func:`search_temperature`: mean nats a token of texts, each from its beginning."""
    tokens = sum(len(passage.ids) for passage in passages)

    def nats_a_token(temperature: float) -> float:
        read = [read_static(model, [part], bos_id=bos_id, temperature=temperature)[0] for part in passages]
        return math.fsum(result.static_nats or 0.0 for result in read) / tokens

    return nats_a_token

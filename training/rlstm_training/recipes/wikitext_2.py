"""WikiText-2 by words, 35 million weights."""

import math
from dataclasses import replace

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Recipe
from rlstm_training.recipes.paper import (
    ROWS_2022,
    as_in_2019,
    circling_back,
    mogrifier_2019,
    steps_of,
    with_lstm_cells,
)

BUDGET = 35_000_000
TRAINING_TOKENS = 2_088_628
WINDOW = 70


def _shape() -> ModelConfig:
    return ModelConfig(
        vocab_size=33_278,
        hidden_size=1,
        num_layers=2,
        mogrifier_rounds=6,
        mogrifier_rank=48,
        tie_embeddings=True,
    )


def _dropout() -> DropoutRates:
    return DropoutRates(input=0.547, cell=0.199, state=0.221, output=0.348)


def wikitext_2_35m_rlstm() -> Recipe:
    """Published: 55.0 perplexity on test, 38.0 with dynamic evaluation.

    Two layers, one softmax, 4 dropout samples, 250 epochs. Averages are evaluated every 1,000 steps, as for
    the Penn Treebank. The rates come from a baseline of narrower embeddings and two softmaxes.
    """
    return circling_back(
        "wikitext-2-35m-rlstm",
        model=_shape().with_budget(BUDGET),
        vocab="words",
        corpus="wikitext-2",
        window=WINDOW,
        steps=steps_of(250, TRAINING_TOKENS, ROWS_2022, WINDOW),
        samples=4,
        learning_rate=3e-3,
        l2=1.9e-4,
        dropout=_dropout(),
        chrono_max=math.e**3,
        evaluate_every=1_000,
        validation_tokens=220_000,
    )


def wikitext_2_35m_lstm() -> Recipe:
    """Published: 55.8 perplexity on test, 38.6 with dynamic evaluation. Cells apart, the RLSTM's run."""
    return with_lstm_cells(wikitext_2_35m_rlstm(), "wikitext-2-35m-lstm", BUDGET)


def wikitext_2_35m_mogrifier_2019() -> Recipe:
    """Published: 56.6 perplexity on test, 39.0 with dynamic evaluation.

    A mixture of two softmaxes. Its embeddings had 0.199 of the layers' width and a projection between; here
    they have all of it, so that the layers are narrower for the same weights.
    """
    shape = replace(as_in_2019(_shape()), softmax_components=2)
    return mogrifier_2019(
        "wikitext-2-35m-mogrifier-2019",
        model=shape.with_budget(BUDGET),
        vocab="words",
        corpus="wikitext-2",
        rows=64,
        window=WINDOW,
        turn=200,
        turns=1_000,
        average_after=50,
        average_latest=800,
        learning_rate=3.29e-3,
        l2=1.9e-4,
        dropout=_dropout(),
        validation_tokens=220_000,
    )

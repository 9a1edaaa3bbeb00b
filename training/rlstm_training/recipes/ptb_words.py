"""Penn Treebank by words, 24 million weights."""

import math

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

BUDGET = 24_000_000
TRAINING_TOKENS = 929_589
WINDOW = 70


def _shape() -> ModelConfig:
    return ModelConfig(
        vocab_size=10_000,
        hidden_size=1,
        num_layers=2,
        mogrifier_rounds=5,
        mogrifier_rank=84,
        tie_embeddings=True,
    )


def _dropout() -> DropoutRates:
    return DropoutRates(input=0.729, cell=0.291, state=0.387, output=0.716)


def ptb_words_24m_rlstm() -> Recipe:
    """Published: 47.9 perplexity on test, 42.9 with dynamic evaluation.

    Two layers, 8 dropout samples, 400 epochs; averages evaluated every 1,000 steps (that of the paper on
    two-tailed averaging). The 10,000 words have ``<unk>`` and ``<eos>`` among them.
    """
    return circling_back(
        "ptb-words-24m-rlstm",
        model=_shape().with_budget(BUDGET),
        vocab="words",
        corpus="ptb-words",
        window=WINDOW,
        steps=steps_of(400, TRAINING_TOKENS, ROWS_2022, WINDOW),
        samples=8,
        learning_rate=2.3e-3,
        l2=2.52e-4,
        dropout=_dropout(),
        chrono_max=math.e**3,
        evaluate_every=1_000,
        validation_tokens=80_000,
    )


def ptb_words_24m_lstm() -> Recipe:
    """Published: 48.5 perplexity on test, 43.3 with dynamic evaluation. Cells apart, the RLSTM's run."""
    return with_lstm_cells(ptb_words_24m_rlstm(), "ptb-words-24m-lstm", BUDGET)


def ptb_words_24m_mogrifier_2019() -> Recipe:
    """Published: 51.0 perplexity on test, 45.0 with dynamic evaluation."""
    shape = as_in_2019(_shape())
    return mogrifier_2019(
        "ptb-words-24m-mogrifier-2019",
        model=shape.with_budget(BUDGET),
        vocab="words",
        corpus="ptb-words",
        rows=64,
        window=WINDOW,
        turn=200,
        turns=1_000,
        average_after=50,
        average_latest=800,
        learning_rate=2.3e-3,
        l2=2.52e-4,
        dropout=_dropout(),
        validation_tokens=80_000,
    )

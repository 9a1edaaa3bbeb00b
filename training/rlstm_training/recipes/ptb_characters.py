"""Penn Treebank by characters, 24 million weights."""

import math

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Recipe
from rlstm_training.recipes.paper import as_in_2019, circling_back, mogrifier_2019, with_lstm_cells

BUDGET = 24_000_000


def _shape() -> ModelConfig:
    return ModelConfig(vocab_size=51, hidden_size=1, num_layers=2, mogrifier_rounds=4, mogrifier_rank=24)


def _dropout() -> DropoutRates:
    return DropoutRates(input=0.279, cell=0.074, state=0.171, output=0.235)


def ptb_characters_24m_rlstm() -> Recipe:
    """Published: 1.096 bits per character on test, 1.061 with dynamic evaluation.

    Two layers, windows of 200, 4 dropout samples, 100 epochs or 20,000 steps. Not published: averages are
    evaluated every 250 steps, in proportion to a shorter run. The vocabulary is the text's 50 symbols, line
    end among them, and the unknown character.
    """
    return circling_back(
        "ptb-characters-24m-rlstm",
        model=_shape().with_budget(BUDGET),
        vocab="characters",
        corpus="ptb-characters",
        window=200,
        steps=20_000,
        samples=4,
        learning_rate=3e-3,
        l2=2.56e-4,
        dropout=_dropout(),
        chrono_max=math.e**4,
        evaluate_every=250,
        validation_tokens=400_000,
    )


def ptb_characters_24m_lstm() -> Recipe:
    """Published: 1.109 bits per character on test, 1.074 with dynamic evaluation. Else the RLSTM's run."""
    return with_lstm_cells(ptb_characters_24m_rlstm(), "ptb-characters-24m-lstm", BUDGET)


def ptb_characters_24m_mogrifier_2019() -> Recipe:
    """Published: 1.131 bits per character on test, 1.088 with dynamic evaluation."""
    return mogrifier_2019(
        "ptb-characters-24m-mogrifier-2019",
        model=as_in_2019(_shape()).with_budget(BUDGET),
        vocab="characters",
        corpus="ptb-characters",
        rows=64,
        window=150,
        turn=200,
        turns=500,
        average_after=25,
        average_latest=400,
        learning_rate=3.74e-3,
        l2=2.56e-4,
        dropout=_dropout(),
        validation_tokens=400_000,
    )

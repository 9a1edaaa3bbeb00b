"""text8 by characters, 48 and 96 million weights: enwik8's runs on another text.

The vocabulary is the 27 letters and spaces, and the line end and the unknown of every vocabulary. text8 is
one line: its read heads start at equal distances, without jitter. Tuned values of 2019 are enwik8's: there
are none for text8.
"""

from dataclasses import replace

from rlstm_training.config import Recipe, Source
from rlstm_training.recipes.enwik8 import BUDGET_48M, BUDGET_96M, enwik8_48m_rlstm, enwik8_96m_rlstm
from rlstm_training.recipes.paper import with_lstm_cells


def text8_48m_rlstm() -> Recipe:
    """Published: 1.119 bits per character on test, 1.068 with dynamic evaluation."""
    return _on_text8(enwik8_48m_rlstm(), "text8-48m-rlstm", BUDGET_48M)


def text8_48m_lstm() -> Recipe:
    """Published: 1.140 bits per character on test, 1.075 with dynamic evaluation."""
    return with_lstm_cells(text8_48m_rlstm(), "text8-48m-lstm", BUDGET_48M)


def text8_96m_rlstm() -> Recipe:
    """Published: 1.096 bits per character on test, 1.044 with dynamic evaluation."""
    return _on_text8(enwik8_96m_rlstm(), "text8-96m-rlstm", BUDGET_96M)


def text8_96m_lstm() -> Recipe:
    """Published: 1.106 bits per character on test, 1.047 with dynamic evaluation."""
    return with_lstm_cells(text8_96m_rlstm(), "text8-96m-lstm", BUDGET_96M)


def _on_text8(recipe: Recipe, name: str, budget: int) -> Recipe:
    return replace(
        recipe,
        name=name,
        model=replace(recipe.model, vocab_size=29).with_budget(budget),
        vocab="characters",
        sources=(Source(corpus="text8", rows=recipe.rows),),
        jitter_lines=0,
    )

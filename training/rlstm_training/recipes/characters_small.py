"""characters-small: a character-level model in the text8 style. About a million weights."""

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe, Source


def characters_small() -> Recipe:
    """Wikipedia as letters and spaces: 27 symbols, and the newline and the unknown of every vocabulary."""
    shape = ModelConfig(vocab_size=29, hidden_size=1, num_layers=2, mogrifier_rounds=4, mogrifier_rank=32)
    return Recipe(
        name="characters-small",
        model=shape.with_budget(1_000_000),
        vocab="characters",
        sources=(Source(corpus="enwiki6-text8", rows=32),),
        window=80,
        steps=6_000,
        learning_rate=3e-3,
        decay="linear",
        beta1=0.9,
        clip_norm=1.0,
        chrono_max=50.0,
        checkpoint_every=200,
    )

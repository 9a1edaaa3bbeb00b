"""tiny: seconds on any machine, to see that everything works and for tests."""

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe, Source


def tiny() -> Recipe:
    """Shakespeare, byte by byte, with far too few weights. Any folder of text does as well."""
    return Recipe(
        name="tiny",
        model=ModelConfig(vocab_size=256, hidden_size=48, num_layers=2, mogrifier_rounds=2, mogrifier_rank=8),
        vocab="bytes",
        sources=(Source(corpus="tinyshakespeare", rows=16),),
        window=32,
        steps=300,
        learning_rate=1e-2,
        decay="linear",
        beta1=0.9,
        clip_norm=1.0,
        evaluate_every=100,
        validation_tokens=10_000,
        checkpoint_every=100,
    )

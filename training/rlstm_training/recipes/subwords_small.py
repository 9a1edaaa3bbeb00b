"""subwords-small: WikiText-2 by subwords, for comparison with words and bytes at a size for one CPU core."""

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Recipe, Source


def subwords_small() -> Recipe:
    """The 256 bytes and 3,840 merges of WikiText-2's training text; two million weights, a third embeddings.

    Nothing is unknown to it. Its perplexity a token compares with that of no words: bits per byte do.
    """
    shape = ModelConfig(
        vocab_size=4_096,
        hidden_size=1,
        num_layers=2,
        mogrifier_rounds=4,
        mogrifier_rank=32,
        tie_embeddings=True,
    )
    return Recipe(
        name="subwords-small",
        model=shape.with_budget(2_000_000),
        vocab="subwords",
        sources=(Source(corpus="wikitext-2", rows=32),),
        window=50,
        steps=8_000,
        learning_rate=3e-3,
        decay="linear",
        beta1=0.9,
        clip_norm=1.0,
        dropout=DropoutRates(input=0.1, cell=0.05, output=0.1),
        chrono_max=30.0,
        validation_tokens=30_000,
        checkpoint_every=250,
    )

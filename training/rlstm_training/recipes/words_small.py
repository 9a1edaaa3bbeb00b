"""words-small: WikiText-2 by words, at a size that one CPU core trains in one to two hours."""

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Recipe, Source


def words_small() -> Recipe:
    """The 33,278 words of WikiText-2, with input and output embeddings tied.

    Nearly all weights are embeddings, and nearly all time goes into the softmax.
    """
    return Recipe(
        name="words-small",
        model=ModelConfig(
            vocab_size=33_278,
            hidden_size=192,
            num_layers=2,
            mogrifier_rounds=4,
            mogrifier_rank=32,
            tie_embeddings=True,
        ),
        vocab="words",
        sources=(Source(corpus="wikitext-2", rows=32),),
        window=35,
        steps=10_000,
        learning_rate=3e-3,
        decay="linear",
        beta1=0.9,
        clip_norm=1.0,
        dropout=DropoutRates(input=0.2, cell=0.1, output=0.2),
        precision="bfloat16",
        chrono_max=30.0,
        validation_tokens=20_000,
        checkpoint_every=250,
    )

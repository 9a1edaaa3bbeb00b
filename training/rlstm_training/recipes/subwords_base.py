"""subwords-base: English by subwords, for surprisal, rescoring and completion; two CPU cores carry it."""

from rlstm_model.config import ModelConfig
from rlstm_model.dropout import DropoutRates
from rlstm_training.config import Averaging, Recipe, Source


def subwords_base() -> Recipe:
    """Novels and Wikipedia, as people write prose and as these texts are published.

    The corpora folder is one that ``python -m rlstm_training.corpora.prose`` has made. The rate stays, and
    an average of the weights takes the place of its decay: so the run may end whenever its time is up.
    """
    return Recipe(
        name="subwords-base",
        model=ModelConfig(
            vocab_size=8_192,
            hidden_size=512,
            num_layers=2,
            mogrifier_rounds=4,
            mogrifier_rank=48,
            tie_embeddings=True,
        ),
        vocab="subwords",
        sources=(
            Source(corpus="novels-plain", rows=12),
            Source(corpus="novels-wrapped", rows=3),
            Source(corpus="dickens-crlf", rows=3),
            Source(corpus="wiki-plain", rows=6),
            Source(corpus="wiki-markup", rows=6),
            Source(corpus="wikitext-tokens", rows=2),
        ),
        window=64,
        steps=60_000,
        learning_rate=2.5e-3,
        beta1=0.9,
        clip_norm=1.0,
        dropout=DropoutRates(cell=0.05, output=0.05),
        chrono_max=50.0,
        averaging=Averaging(kind="two_tailed"),
        evaluate_every=500,
        validation_tokens=8_000,
        checkpoint_every=250,
        precision="bfloat16",
    )

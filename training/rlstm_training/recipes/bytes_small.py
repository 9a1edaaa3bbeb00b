"""bytes-small: the model that ships. About two million weights; one CPU core carries it."""

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe, Source


def bytes_small() -> Recipe:
    """English novels and Wikipedia, byte by byte.

    Dickens is CRLF and hard-wrapped, other people's novels are not: half of its rows read the file as it
    is, half a copy with LF line ends, of which half again has its paragraphs unwrapped. Wikipedia has LF
    ends and a paragraph a line already.
    """
    shape = ModelConfig(vocab_size=256, hidden_size=1, num_layers=2, mogrifier_rounds=4, mogrifier_rank=40)
    return Recipe(
        name="bytes-small",
        model=shape.with_budget(2_000_000),
        vocab="bytes",
        sources=(
            Source(corpus="enwiki6", rows=12),
            Source(corpus="dickens", rows=10),
            Source(corpus="dickens", rows=5, form="lf"),
            Source(corpus="dickens", rows=5, form="unwrapped"),
        ),
        window=80,
        steps=6_500,
        learning_rate=3e-3,
        decay="linear",
        beta1=0.9,
        clip_norm=1.0,
        chrono_max=50.0,
        evaluate_every=1_000,
        checkpoint_every=200,
    )

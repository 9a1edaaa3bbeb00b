"""What the recipes of two papers share: Melis 2022, and the Mogrifier LSTM of 2019 that it is compared with.

What 2022 published: layers, batch, window, epochs, dropout samples, RAdam, Chrono initialisation, residual
stacking, cell dropout, divergence resets, two-tailed averaging, and that everything else is as in 2019
(mathematics: §3). Not published, and chosen here:

* learning rate, L2, dropout rates, rounds and rank: those tuned in 2019 for the same corpus and size
  (mathematics: §2.15), but a learning rate outside 0.002 .. 0.003 is moved to the nearer end;
* T_max of the Chrono initialisation: e^3 tokens for words, e^4 for characters, of a range of e^2 .. e^5;
* RAdam's decay rates: beta1 = 0, beta2 = 0.999, as Adam's in 2019;
* the length of a validation, and its period where none is known.

What 2019 published is complete; three things differ here. Embeddings are as wide as the layers, not tuned
apart. Dropout between layers acts on the softmax's input too, as in 2022. And a batch is never cut in two
whose gradients are clipped as a sum, as that of 96 million weights was.
"""

from dataclasses import replace

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Averaging, Recipe, Source, VocabKind

ROWS_2022 = 128
JITTER_LINES = 100


def circling_back(
    name: str,
    *,
    model: ModelConfig,
    vocab: VocabKind,
    corpus: str,
    window: int,
    steps: int,
    samples: int,
    learning_rate: float,
    l2: float,
    dropout: DropoutRates,
    chrono_max: float,
    evaluate_every: int,
    validation_tokens: int,
) -> Recipe:
    """A run as in "Circling Back to Recurrent Models of Language" (Melis 2022)."""
    return Recipe(
        name=name,
        model=model,
        vocab=vocab,
        sources=(Source(corpus=corpus, rows=ROWS_2022),),
        jitter_lines=JITTER_LINES,
        window=window,
        steps=steps,
        optimizer="radam",
        learning_rate=learning_rate,
        loss_scale="sum_over_time",
        l2=l2,
        clip_norm=10.0,
        dropout=dropout,
        dropout_samples=samples,
        reset_probability=0.01,
        chrono_max=chrono_max,
        averaging=Averaging(kind="two_tailed"),
        evaluate_every=evaluate_every,
        validation_tokens=validation_tokens,
        checkpoint_every=500,
    )


def mogrifier_2019(
    name: str,
    *,
    model: ModelConfig,
    vocab: VocabKind,
    corpus: str,
    rows: int,
    window: int,
    turn: int,
    turns: int,
    average_after: int,
    average_latest: int,
    learning_rate: float,
    l2: float,
    dropout: DropoutRates,
    validation_tokens: int,
) -> Recipe:
    """A run as in "Mogrifier LSTM" (Melis, Kočiský and Blunsom 2020; its baseline's code of 2019).

    ``turn`` is steps between two evaluations; ``average_after`` turns without a better one the average of
    the weights begins, at the latest after ``average_latest`` turns.
    """
    return Recipe(
        name=name,
        model=model,
        vocab=vocab,
        sources=(Source(corpus=corpus, rows=rows),),
        jitter_lines=JITTER_LINES,
        window=window,
        steps=turn * turns,
        optimizer="adam",
        learning_rate=learning_rate,
        loss_scale="sum_over_time",
        l2=l2,
        clip_norm=10.0,
        dropout=dropout,
        reset_probability=0.01,
        chrono_max=None,
        averaging=Averaging(kind="tail", patience=average_after, latest=turn * average_latest),
        evaluate_every=turn,
        validation_tokens=validation_tokens,
        divergence_resets=0,
        checkpoint_every=500,
    )


def as_in_2019(shape: ModelConfig) -> ModelConfig:
    """LSTM layers, each reading the one below it; the softmax reads the sum of all."""
    return replace(shape, cell="lstm", stacking="skip")


def with_lstm_cells(recipe: Recipe, name: str, budget: int) -> Recipe:
    """The same run of as many weights in LSTM layers: they are narrower."""
    model = replace(recipe.model, cell="lstm")
    return replace(recipe, name=name, model=model.with_budget(budget))


def steps_of(epochs: int, tokens: int, rows: int, window: int) -> int:
    """The optimiser steps in which ``rows`` rows together read a text of ``tokens`` so many times."""
    return round(epochs * tokens / (rows * window))

"""Recipes by name, in one table: those of one CPU core, the rows of the papers' tables, an ablation.

What Melis 2022 published: layers, batch, window, epochs, dropout samples, RAdam, Chrono initialisation,
residual stacking, cell dropout, divergence resets, two-tailed averaging, and that everything else is as in
2019 (docs/mathematics.md §3). Not published, and chosen here:

* learning rate, L2, dropout rates, rounds and rank: those tuned in 2019 for the same corpus and size
  (docs/mathematics.md §2.15), but a learning rate outside 0.002 .. 0.003 is moved to the nearer end; text8
  takes enwik8's, since there are none for it;
* T_max of the Chrono initialisation: e^3 tokens for words, e^4 for characters, of a range of e^2 .. e^5;
* RAdam's decay rates: beta1 = 0, beta2 = 0.999, as Adam's in 2019;
* the length of a validation, and its period where none is known: for enwik8 every 2,000 steps on the first
  tenth, and 50 evaluations without a better one, 36 epochs, end the run; for the Penn Treebank by characters
  every 250 steps.

What 2019 published (Melis, Kočiský and Blunsom 2020, and their code) is complete; three things differ here.
Embeddings are as wide as the layers, not tuned apart. Dropout between layers acts on the softmax's input
too, as in 2022. And a batch is never cut in two whose gradients are clipped as a sum, as that of 96 million
weights was.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Averaging, Recipe, Source, VocabKind

ROWS_2022 = 128
MILLION = 1_000_000


def _shape(vocab_size: int, layers: int, rounds: int, rank: int, **rest: Any) -> ModelConfig:
    """A model of one unit a layer, to be widened to a budget of weights."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=1,
        num_layers=layers,
        mogrifier_rounds=rounds,
        mogrifier_rank=rank,
        **rest,
    )


# Those of one CPU core.


def _small(name: str, model: ModelConfig, vocab: VocabKind, *sources: Source, **settings: Any) -> Recipe:
    """A run of minutes to hours, with momentum and a rate that falls to zero."""
    usual = {"learning_rate": 3e-3, "decay": "linear", "beta1": 0.9}
    return Recipe(name=name, model=model, vocab=vocab, sources=sources, **{**usual, **settings})


def tiny() -> Recipe:
    """Shakespeare, byte by byte, with far too few weights: seconds, to see that everything works."""
    return _small(
        "tiny",
        replace(_shape(256, 2, 2, 8), hidden_size=48),
        "bytes",
        Source(corpus="tinyshakespeare", rows=16),
        window=32,
        steps=300,
        learning_rate=1e-2,
        evaluate_every=100,
        validation_tokens=10_000,
        checkpoint_every=100,
    )


def bytes_small() -> Recipe:
    """The model that ships: English novels and Wikipedia, byte by byte; about two million weights.

    Dickens is CRLF and hard-wrapped, other people's novels are not: half of its rows read the file as it
    is, half a copy with LF line ends, of which half again has its paragraphs unwrapped. Wikipedia has LF
    ends and a paragraph a line already.
    """
    return _small(
        "bytes-small",
        _shape(256, 2, 4, 40).with_budget(2 * MILLION),
        "bytes",
        Source(corpus="enwiki6", rows=12),
        Source(corpus="dickens", rows=10),
        Source(corpus="dickens", rows=5, form="lf"),
        Source(corpus="dickens", rows=5, form="unwrapped"),
        window=80,
        steps=6_500,
        checkpoint_every=200,
    )


def characters_small() -> Recipe:
    """Wikipedia as letters and spaces: 27 symbols, and the newline and the unknown of every vocabulary."""
    model, source = _shape(29, 2, 4, 32).with_budget(MILLION), Source(corpus="enwiki6-text8", rows=32)
    settings = {"window": 80, "steps": 6_000, "checkpoint_every": 200}
    return _small("characters-small", model, "characters", source, **settings)


def words_small() -> Recipe:
    """The 33,278 words of WikiText-2, input and output embeddings tied: an hour or two on one core.

    Nearly all weights are embeddings, and nearly all time goes into the softmax.
    """
    return _small(
        "words-small",
        replace(_shape(33_278, 2, 4, 32, tie_embeddings=True), hidden_size=192),
        "words",
        Source(corpus="wikitext-2", rows=32),
        window=35,
        steps=10_000,
        dropout=DropoutRates(input=0.2, cell=0.1, output=0.2),
        precision="bfloat16",
        chrono_max=30.0,
        validation_tokens=20_000,
    )


def subwords_small() -> Recipe:
    """The 256 bytes and 3,840 merges of WikiText-2's training text; two million weights, a third embeddings.

    Nothing is unknown to it. Its perplexity a token compares with that of no words: bits per byte do.
    """
    return _small(
        "subwords-small",
        _shape(4_096, 2, 4, 32, tie_embeddings=True).with_budget(2 * MILLION),
        "subwords",
        Source(corpus="wikitext-2", rows=32),
        window=50,
        steps=8_000,
        dropout=DropoutRates(input=0.1, cell=0.05, output=0.1),
        chrono_max=30.0,
        validation_tokens=30_000,
    )


def subwords_base() -> Recipe:
    """Novels and Wikipedia, as people write prose and as these texts are published.

    The corpora folder is one that ``training/prose.py`` of a checkout has made. The rate stays, and
    an average of the weights takes the place of its decay: so the run may end whenever its time is up. The
    shipped model had 6,500 steps of it, and then `subwords_base_cooldown`.
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


def subwords_base_cooldown() -> Recipe:
    """To go on with from weights of `subwords_base`: its rate goes to zero, without dropout."""
    warm = subwords_base()
    rows = (10, 3, 3, 5, 9, 2)
    return replace(
        warm,
        name="subwords-base-cooldown",
        sources=tuple(replace(source, rows=own) for source, own in zip(warm.sources, rows, strict=True)),
        steps=4_000,
        learning_rate=1.8e-3,
        decay="linear",
        dropout=DropoutRates(),
        evaluate_every=1_000,
    )


# The papers' tables of results.


class _Of2019(NamedTuple):
    """What the run of 2019 on the same corpus has for itself.

    turn, turns  steps between two evaluations, and how many of them; the average of the weights begins at the
                 latest after 0.8 of the run, or after ``patience`` turns without a better one
    """

    learning_rate: float
    rows: int = 64
    window: int = 70
    num_layers: int = 2
    softmax_components: int = 1
    turn: int = 200
    turns: int = 1_000
    patience: int = 50

    def run(self, recipe: Recipe) -> Recipe:
        """Adam, tail averaging, one dropout sample, no Chrono.

        Its LSTM layers read the one below each; the softmax reads the sum of all. The mixture of two
        softmaxes on WikiText-2 had embeddings of 0.199 of the layers' width and a projection between; here
        they have all of it, so that the layers are narrower for the same weights.
        """
        steps = self.turn * self.turns
        return replace(
            recipe,
            model=replace(
                recipe.model,
                cell="lstm",
                stacking="skip",
                num_layers=self.num_layers,
                softmax_components=self.softmax_components,
            ),
            sources=(replace(recipe.sources[0], rows=self.rows),),
            window=self.window,
            steps=steps,
            optimizer="adam",
            learning_rate=self.learning_rate,
            dropout_samples=1,
            chrono_max=None,
            averaging=Averaging(kind="tail", patience=self.patience, latest=steps * 4 // 5),
            evaluate_every=self.turn,
            early_stopping=0,
            divergence_resets=0,
        )


def steps_of(epochs: int, tokens: int, window: int) -> int:
    """The optimiser steps in which the batch of 2022 reads a text of ``tokens`` so many times."""
    return round(epochs * tokens / (ROWS_2022 * window))


def _rates(embedding: float, cell: float, state: float, output: float) -> DropoutRates:
    return DropoutRates(input=embedding, cell=cell, state=state, output=output)


def _of_2022(corpus: str, vocab: VocabKind, shape: ModelConfig, **settings: Any) -> Recipe:
    """The RLSTM's run on a corpus, for any size and name."""
    return Recipe(
        name=corpus,
        model=shape,
        vocab=vocab,
        sources=(Source(corpus=corpus, rows=ROWS_2022),),
        loss_scale="sum_over_time",
        clip_norm=10.0,
        averaging=Averaging(kind="two_tailed"),
        checkpoint_every=500,
        **{"jitter_lines": 100, **settings},
    )


# The vocabulary is all 256 bytes, so that a model reads any text; the papers had the 205 that occur in
# enwik8, and one for the unknown. The 50 more cost some 100,000 weights and no bits once it has learned that
# they never come.
_ENWIK8 = _of_2022(
    "enwik8",
    "bytes",
    _shape(256, 6, 6, 79),
    window=256,
    steps=steps_of(200, 90 * MILLION, 256),
    learning_rate=2e-3,
    l2=9.93e-4,
    dropout=_rates(0.015, 0.009, 0.044, 0.138),
    chrono_max=math.e**4,
    evaluate_every=2_000,
    validation_tokens=500_000,
    early_stopping=50,
)
_ENWIK8_96M = replace(
    _ENWIK8,
    model=_shape(256, 6, 5, 61),
    learning_rate=2.25e-3,
    l2=4.4e-5,
    dropout=_rates(0.016, 0.138, 0.165, 0.288),
)
_ENWIK8_2019 = _Of2019(1.02e-3, 128, 500, num_layers=4, turn=400, turns=100, patience=10)


def _on_text8(recipe: Recipe) -> Recipe:
    """enwik8's run on 27 letters and spaces, line end and unknown. One line: its read heads cannot jitter."""
    model, sources = replace(recipe.model, vocab_size=29), (Source(corpus="text8", rows=ROWS_2022),)
    return replace(recipe, model=model, vocab="characters", sources=sources, jitter_lines=0)


_ROWS: Mapping[str, tuple[Recipe, _Of2019 | None]] = {
    "ptb-words-24m": (
        _of_2022(
            "ptb-words",
            "words",
            _shape(10_000, 2, 5, 84, tie_embeddings=True),
            window=70,
            steps=steps_of(400, 929_589, 70),
            dropout_samples=8,
            learning_rate=2.3e-3,
            l2=2.52e-4,
            dropout=_rates(0.729, 0.291, 0.387, 0.716),
            chrono_max=math.e**3,
            validation_tokens=80_000,
        ),
        _Of2019(2.3e-3),
    ),
    # The rates come from a baseline of narrower embeddings and two softmaxes.
    "wikitext-2-35m": (
        _of_2022(
            "wikitext-2",
            "words",
            _shape(33_278, 2, 6, 48, tie_embeddings=True),
            window=70,
            steps=steps_of(250, 2_088_628, 70),
            dropout_samples=4,
            learning_rate=3e-3,
            l2=1.9e-4,
            dropout=_rates(0.547, 0.199, 0.221, 0.348),
            chrono_max=math.e**3,
            validation_tokens=220_000,
        ),
        _Of2019(3.29e-3, softmax_components=2),
    ),
    # 50 symbols, line end among them, and the unknown character; 100 epochs or 20,000 steps.
    "ptb-characters-24m": (
        _of_2022(
            "ptb-characters",
            "characters",
            _shape(51, 2, 4, 24),
            window=200,
            steps=20_000,
            dropout_samples=4,
            learning_rate=3e-3,
            l2=2.56e-4,
            dropout=_rates(0.279, 0.074, 0.171, 0.235),
            chrono_max=math.e**4,
            evaluate_every=250,
            validation_tokens=400_000,
        ),
        _Of2019(3.74e-3, window=150, turns=500, patience=25),
    ),
    "enwik8-48m": (_ENWIK8, _ENWIK8_2019),
    "enwik8-96m": (_ENWIK8_96M, _ENWIK8_2019._replace(learning_rate=2.25e-3)),
    "text8-48m": (_on_text8(_ENWIK8), None),
    "text8-96m": (_on_text8(_ENWIK8_96M), None),
}

PUBLISHED: Mapping[str, tuple[float, float]] = {
    "ptb-words-24m-rlstm": (47.9, 42.9),
    "ptb-words-24m-lstm": (48.5, 43.3),
    "ptb-words-24m-mogrifier-2019": (51.0, 45.0),
    "wikitext-2-35m-rlstm": (55.0, 38.0),
    "wikitext-2-35m-lstm": (55.8, 38.6),
    "wikitext-2-35m-mogrifier-2019": (56.6, 39.0),
    "ptb-characters-24m-rlstm": (1.096, 1.061),
    "ptb-characters-24m-lstm": (1.109, 1.074),
    "ptb-characters-24m-mogrifier-2019": (1.131, 1.088),
    "enwik8-48m-rlstm": (1.071, 0.968),
    "enwik8-48m-lstm": (1.094, 0.970),
    "enwik8-48m-mogrifier-2019": (1.146, 1.012),
    "enwik8-96m-rlstm": (1.042, 0.935),
    "enwik8-96m-lstm": (1.073, 0.946),
    "enwik8-96m-mogrifier-2019": (1.122, 0.988),
    "text8-48m-rlstm": (1.119, 1.068),
    "text8-48m-lstm": (1.140, 1.075),
    "text8-96m-rlstm": (1.096, 1.044),
    "text8-96m-lstm": (1.106, 1.047),
}
"""The published rows: perplexity of words, bits per character or byte, on test; static, then dynamic."""


def _published(name: str) -> Recipe:
    """The run of a published row, of either paper, as wide as its weights allow."""
    row, _, cell = name.removesuffix("-2019").rpartition("-")
    recipe, of_2019 = _ROWS[row]
    if cell == "lstm":
        recipe = replace(recipe, model=replace(recipe.model, cell="lstm"))
    elif cell == "mogrifier" and of_2019 is not None:
        recipe = of_2019.run(recipe)
    weights = int(row.rpartition("-")[2].removesuffix("m")) * MILLION
    return replace(recipe, name=name, model=recipe.model.with_budget(weights))


# The ablation: a baseline with every part of the method, and runs that differ from it by one part.

_LOW_DROPOUT = _rates(0.05, 0.05, 0.05, 0.05)
_PLAIN_LSTM = {"cell": "lstm", "mogrifier_rounds": 0, "stacking": "plain"}
_ABLATION: Mapping[str, Mapping[str, Any]] = {
    "baseline": {},
    "lstm": {"model": {"cell": "lstm"}},
    "rounds-0": {"model": {"mogrifier_rounds": 0}},
    "rounds-2": {"model": {"mogrifier_rounds": 2}},
    "rounds-6": {"model": {"mogrifier_rounds": 6}},
    "skip": {"model": {"stacking": "skip"}},
    "plain": {"model": {"stacking": "plain"}},
    "plain-lstm": {"model": _PLAIN_LSTM},
    "plain-lstm-2": {"model": {**_PLAIN_LSTM, "num_layers": 2}},
    "no-chrono": {"chrono_max": None},
    "adam": {"optimizer": "adam"},
    "tail": {"averaging": Averaging(kind="tail", latest=750)},
    "dropout-1": {"dropout": _LOW_DROPOUT},
    "dropout-4": {"dropout": _LOW_DROPOUT, "dropout_samples": 4},
}


def _ablation(name: str) -> Recipe:
    """At most 600,000 weights that read the same tokens of enwiki6, byte by byte, in minutes on one core.

    The baseline: RLSTM, four layers, four rounds, residual, Chrono, RAdam, Two-Tailed Averaging; no dropout,
    since a pass over the corpus is not completed and nothing can overfit.
    """
    changes = {"averaging": Averaging(kind="two_tailed"), **_ABLATION[name]}
    shape = replace(_shape(256, 4, 4, 24), **changes.pop("model", {}))
    return Recipe(
        name=f"ablation-{name}",
        model=shape.with_budget(600_000),
        vocab="bytes",
        sources=(Source(corpus="enwiki6", rows=64),),
        window=50,
        steps=1_000,
        learning_rate=3e-3,
        beta1=0.9,
        evaluate_every=100,
        validation_tokens=30_000,
        **changes,
    )


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "tiny": tiny,
    "bytes-small": bytes_small,
    "characters-small": characters_small,
    "words-small": words_small,
    "subwords-small": subwords_small,
    "subwords-base": subwords_base,
    "subwords-base-cooldown": subwords_base_cooldown,
    **{name: partial(_published, name) for name in PUBLISHED},
    **{f"ablation-{name}": partial(_ablation, name) for name in _ABLATION},
}

"""Recipes of the papers' tables against what is known of those runs."""

import re
from dataclasses import replace

import pytest
from rlstm_training.recipes.paper import steps_of, with_lstm_cells

from rlstm_model.config import ModelConfig
from rlstm_training.config import Averaging
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.recipes import RECIPES

PAPER = [name for name in RECIPES if re.search(r"-\d+m-", name)]
OF_2022 = [name for name in PAPER if not name.endswith("2019")]
OF_2019 = [name for name in PAPER if name.endswith("2019")]

# Budget in millions, V, layers, rounds, rank, tied; hidden sizes of LSTM, RLSTM, and RLSTM without rounds.
SIZES = [
    (24, 10_001, 2, 5, 84, True, (912, 956, 999)),
    (35, 33_279, 2, 6, 48, True, (752, 772, 788)),
    (24, 51, 2, 4, 24, False, (1209, 1291, 1305)),
    (48, 206, 6, 6, 79, False, (937, 998, 1063)),
    (96, 206, 6, 5, 61, False, (1371, 1463, 1506)),
    (48, 206, 4, 6, 79, False, (1160, 1235, None)),
    (96, 206, 4, 5, 61, False, (1687, 1800, None)),
]


@pytest.mark.parametrize(("millions", "vocab", "layers", "rounds", "rank", "tied", "sizes"), SIZES)
def test_oracle_j_budgets_give_the_published_sizes(millions, vocab, layers, rounds, rank, tied, sizes):
    """The budget solver reproduces the table of mathematics §1.4, and fills each budget to the last unit."""
    rlstm = ModelConfig(
        vocab_size=vocab,
        hidden_size=1,
        num_layers=layers,
        mogrifier_rounds=rounds,
        mogrifier_rank=rank,
        tie_embeddings=tied,
    )
    for model, hidden in zip(
        (replace(rlstm, cell="lstm"), rlstm, replace(rlstm, mogrifier_rounds=0)), sizes, strict=True
    ):
        solved = model.with_budget(millions * 10**6)
        assert hidden in (None, solved.hidden_size)
        assert solved.num_parameters <= millions * 10**6
        assert replace(solved, hidden_size=solved.hidden_size + 1).num_parameters > millions * 10**6


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_has_the_most_weights_of_its_budget(name):
    """The size in its name."""
    model = RECIPES[name]().model
    budget = next(int(part[:-1]) for part in name.split("-") if part[:-1].isdigit() and part[-1] == "m")
    assert model == model.with_budget(budget * 10**6)


def test_every_row_of_the_tables_is_there():
    """Two corpora by words, three by characters, two of these at two sizes. text8 has no row of 2019."""
    rows = ["ptb-words-24m", "wikitext-2-35m", "ptb-characters-24m", "enwik8-48m", "enwik8-96m"]
    both = [*rows, "text8-48m", "text8-96m"]
    expected = {f"{row}-{cell}" for row in both for cell in ("rlstm", "lstm")}
    assert {*expected, *(f"{row}-mogrifier-2019" for row in rows)} == set(PAPER)


@pytest.mark.parametrize(
    ("corpus", "layers", "window", "samples", "epochs", "steps"),
    [
        ("ptb-words", 2, 70, 8, 400, 41_500),
        ("wikitext-2", 2, 70, 4, 250, 58_000),
        ("ptb-characters", 2, 200, 4, 100, 20_000),
        ("enwik8", 6, 256, 1, 200, 549_000),
        ("text8", 6, 256, 1, 200, 549_000),
    ],
)
def test_what_was_published_of_2022(corpus, layers, window, samples, epochs, steps):
    """Layers, batch, window, dropout samples and steps of mathematics §3, for both cells and each size."""
    for name in OF_2022:
        recipe = RECIPES[name]()
        if recipe.sources[0].corpus == corpus:
            assert (recipe.model.num_layers, recipe.window, recipe.rows) == (layers, window, 128)
            assert recipe.dropout_samples == samples
            assert abs(recipe.steps - steps) < 500
            (train, *_) = PUBLISHED[corpus].files
            if train.tokens:
                assert recipe.steps == steps_of(epochs, train.tokens, 128, window)


@pytest.mark.parametrize("name", OF_2022)
def test_the_method_of_2022(name):
    """RAdam without momentum, loss summed over time, clip 10, two-tailed averages, Chrono in its range."""
    recipe = RECIPES[name]()
    assert (recipe.optimizer, recipe.beta1, recipe.beta2, recipe.decay) == ("radam", 0.0, 0.999, "constant")
    assert (recipe.loss_scale, recipe.clip_norm, recipe.reset_probability) == ("sum_over_time", 10.0, 0.01)
    assert recipe.averaging == Averaging(kind="two_tailed", every=1)
    assert recipe.batching == "heads"
    assert recipe.jitter_lines == (0 if recipe.sources[0].corpus == "text8" else 100)
    assert recipe.chrono_max is not None
    assert 7.38 < recipe.chrono_max < 148.5
    assert 0.002 <= recipe.learning_rate <= 0.003
    assert (recipe.model.stacking, recipe.model.softmax_components) == ("residual", 1)
    assert recipe.model.cell == name.split("-")[-1]


@pytest.mark.parametrize("name", OF_2019)
def test_the_baseline_of_2019(name):
    """Adam without momentum, tail averaging, one dropout sample, skip stacking, forget biases around 1."""
    recipe = RECIPES[name]()
    assert (recipe.optimizer, recipe.beta1, recipe.loss_scale, recipe.clip_norm) == (
        "adam",
        0.0,
        "sum_over_time",
        10.0,
    )
    assert recipe.averaging.kind == "tail"
    assert recipe.averaging.latest == 0.8 * recipe.steps
    assert (recipe.dropout_samples, recipe.chrono_max, recipe.divergence_resets) == (1, None, 0)
    assert (recipe.model.cell, recipe.model.stacking) == ("lstm", "skip")
    assert recipe.model.softmax_components == (2 if "wikitext" in name else 1)


@pytest.mark.parametrize("name", [name for name in OF_2022 if not name.endswith("rlstm")])
def test_an_lstm_row_is_the_rlstm_row_with_other_cells(name):
    """Nothing but the cells, the name and the width differs."""
    lstm, rlstm = RECIPES[name](), RECIPES[name.replace("-lstm", "-rlstm")]()
    assert rlstm.model.num_parameters // 10**6 == lstm.model.num_parameters // 10**6
    assert lstm.model.hidden_size < rlstm.model.hidden_size
    model = replace(rlstm.model, cell="lstm", hidden_size=lstm.model.hidden_size)
    assert lstm == replace(rlstm, name=name, model=model)
    assert with_lstm_cells(lstm, name, 10**7).model.num_parameters <= 10**7


@pytest.mark.parametrize("name", PAPER)
def test_a_corpus_and_its_vocabulary_are_those_published(name):
    """The text is in the table, and the vocabulary's size is known without reading it."""
    recipe = RECIPES[name]()
    sizes = {
        "ptb-words": 10_000,
        "wikitext-2": 33_278,
        "ptb-characters": 50 + 1,
        "enwik8": 256,
        "text8": 27 + 2,
    }
    (source,) = recipe.sources
    assert source.corpus in PUBLISHED
    assert recipe.model.vocab_size == sizes[source.corpus]
    assert recipe.model.tie_embeddings == (recipe.vocab == "words")

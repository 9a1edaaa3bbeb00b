"""The table of recipes against what is known of the published runs, and each against its own JSON."""

import json
import re
from dataclasses import replace

import pytest

from rlstm_training.config import Averaging, Recipe
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora import published as published_corpora
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import prepare
from rlstm_training.recipes import PUBLISHED, RECIPES

OF_2019 = [name for name in PUBLISHED if name.endswith("2019")]
OF_2022 = [name for name in PUBLISHED if name not in OF_2019]
SHARED_2022 = {
    "optimizer": "radam",
    "beta1": 0.0,
    "beta2": 0.999,
    "decay": "constant",
    "loss_scale": "sum_over_time",
    "clip_norm": 10.0,
    "reset_probability": 0.01,
    "averaging": Averaging(kind="two_tailed", every=1),
    "batching": "heads",
    "rows": 128,
}
SHARED_2019 = {
    "optimizer": "adam",
    "beta1": 0.0,
    "loss_scale": "sum_over_time",
    "clip_norm": 10.0,
    "decay": "constant",
    "dropout_samples": 1,
    "chrono_max": None,
    "divergence_resets": 0,
    "batching": "heads",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_its_name_and_survives_its_run_directory(name):
    """What the command is told is what the run is called; what is written into it is what was chosen."""
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_corpus_and_vocabulary_are_those_published(name):
    """The most weights of the size in its name; the vocabulary's size is known without reading the text."""
    recipe = RECIPES[name]()
    (millions,) = re.findall(r"-(\d+)m-", name)
    assert recipe.model == recipe.model.with_budget(int(millions) * 10**6)
    (source,) = recipe.sources
    assert source.corpus in published_corpora.PUBLISHED
    sizes = {"ptb-words": 10_000, "wikitext-2": 33_278, "ptb-characters": 51, "enwik8": 256, "text8": 29}
    assert recipe.model.vocab_size == sizes[source.corpus]
    assert recipe.model.tie_embeddings == (recipe.vocab == "words")


def test_every_row_of_the_tables_is_there():
    """Two corpora by words, three by characters, two of these at two sizes. text8 has no row of 2019."""
    rows = ["ptb-words-24m", "wikitext-2-35m", "ptb-characters-24m", "enwik8-48m", "enwik8-96m"]
    both = {f"{row}-{cell}" for row in [*rows, "text8-48m", "text8-96m"] for cell in ("rlstm", "lstm")}
    assert {*both, *(f"{row}-mogrifier-2019" for row in rows)} == set(PUBLISHED)


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
    """Layers, window, dropout samples and steps of mathematics §3, for both cells and each size."""
    for recipe in (RECIPES[name]() for name in OF_2022):
        if recipe.sources[0].corpus == corpus:
            assert (recipe.model.num_layers, recipe.window, recipe.dropout_samples) == (
                layers,
                window,
                samples,
            )
            assert abs(recipe.steps - steps) < 500
            (train, *_) = published_corpora.PUBLISHED[corpus].files
            read = 128 * window * recipe.steps
            assert train.tokens is None or abs(read - epochs * train.tokens) <= 64 * window


@pytest.mark.parametrize("name", OF_2022)
def test_the_method_of_2022(name):
    """The shared settings, Chrono and rate within their ranges; only text8, one line, has no jitter.

    An LSTM row differs from the RLSTM's by its cells, its name and its width alone.
    """
    recipe = RECIPES[name]()
    assert {field: getattr(recipe, field) for field in SHARED_2022} == SHARED_2022
    assert recipe.jitter_lines == (0 if recipe.sources[0].corpus == "text8" else 100)
    assert 7.38 < recipe.chrono_max < 148.5
    assert 0.002 <= recipe.learning_rate <= 0.003
    model = recipe.model
    assert (model.stacking, model.softmax_components, model.cell) == ("residual", 1, name.split("-")[-1])
    rlstm = RECIPES[name.replace("-lstm", "-rlstm")]()
    assert rlstm.model.hidden_size >= model.hidden_size
    same = replace(rlstm.model, cell=model.cell, hidden_size=model.hidden_size)
    assert recipe == replace(rlstm, name=name, model=same)


@pytest.mark.parametrize("name", OF_2019)
def test_the_baseline_of_2019(name):
    """The shared settings, tail averaging at the latest after 0.8 of the run, skip stacking."""
    recipe = RECIPES[name]()
    assert {field: getattr(recipe, field) for field in SHARED_2019} == SHARED_2019
    assert (recipe.averaging.kind, recipe.averaging.latest) == ("tail", 0.8 * recipe.steps)
    assert (recipe.model.cell, recipe.model.stacking) == ("lstm", "skip")
    assert recipe.model.softmax_components == (2 if "wikitext" in name else 1)


def test_the_shipped_model_keeps_its_size_and_its_reading():
    """Two million weights on bytes; half of Dickens's rows read the file, a quarter each LF and unwrapped."""
    recipe = RECIPES["bytes-small"]()
    assert recipe.model == recipe.model.with_budget(2_000_000)
    rows = {s.form: s.rows for s in recipe.sources if s.corpus == "dickens"}
    assert rows["as_is"] == 2 * rows["lf"] == 2 * rows["unwrapped"]


@pytest.mark.slow
@pytest.mark.skipif(not (corpora_folder() / "wikitext-2").is_dir(), reason="no WikiText-2 in RLSTM_CORPORA")
def test_subwords_of_wikitext():
    """subwords-small finds its 4,096, which give the validation text back in a third of the tokens."""
    texts, vocab = prepare(RECIPES["subwords-small"]())
    ids = texts.valid["wikitext-2/as_is"]
    raw = b"".join(map(vocab.token_bytes, ids.tolist()))
    assert vocab.size == 4_096
    assert raw == load_corpus("wikitext-2", "valid")
    assert len(ids) < 0.35 * len(raw)

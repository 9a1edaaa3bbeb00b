import json

import pytest

from rlstm_training.config import Recipe
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import prepare
from rlstm_training.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_its_own_name(name):
    """What the command is told is what the run is called."""
    assert RECIPES[name]().name == name


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_its_run_directory(name):
    """What is written into a run is what was chosen."""
    recipe = RECIPES[name]()
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_the_shipped_model_keeps_its_size():
    """bytes-small has the most weights that two million allow, on bytes."""
    model = RECIPES["bytes-small"]().model
    assert model.vocab_size == 256
    assert model.num_parameters == model.with_budget(2_000_000).num_parameters <= 2_000_000


def test_dickens_is_read_as_it_is_and_normalised_equally():
    """Half of its rows read the file, half a copy with LF ends, of which half again is unwrapped."""
    rows = {s.form: s.rows for s in RECIPES["bytes-small"]().sources if s.corpus == "dickens"}
    assert rows["as_is"] == rows["lf"] + rows["unwrapped"]
    assert rows["lf"] == rows["unwrapped"]


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

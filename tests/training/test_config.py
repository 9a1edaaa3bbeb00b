import json

import pytest

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe, Source
from rlstm_training.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_json_brings_back_the_same_recipe(name):
    """A recipe survives its JSON text unchanged."""
    recipe = RECIPES[name]()
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_another_format_is_refused(toy_recipe):
    """A recipe of a newer format is an error, not a guess."""
    with pytest.raises(ValueError, match="format_version must be 2, not 3"):
        Recipe.from_json({**toy_recipe().to_json(), "format_version": 3})


@pytest.mark.parametrize("change", [{"unknown": 1}, {"sources": [{"corpus": "a"}]}])
def test_unknown_and_missing_fields_are_refused(toy_recipe, change):
    """Nothing in a stored recipe is ignored or guessed."""
    with pytest.raises(ValueError, match="not a recipe of this version"):
        Recipe.from_json({**toy_recipe().to_json(), **change})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sources", ()),
        ("window", 0),
        ("steps", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("dropout_samples", 0),
        ("reset_probability", 1.5),
        ("checkpoint_every", 0),
    ],
)
def test_impossible_values_name_their_field(toy_recipe, field, value):
    """A recipe that cannot be run is refused when it is made."""
    with pytest.raises(ValueError, match=field):
        toy_recipe(**{field: value})


def test_a_source_without_rows_is_refused():
    """A source that nothing reads names itself."""
    with pytest.raises(ValueError, match="source novels: rows"):
        Source(corpus="novels", rows=0)


def test_rates():
    """A constant rate stays; a linear one falls evenly and would reach zero after the last step."""
    shape = ModelConfig(vocab_size=4, hidden_size=2)
    common = {"name": "r", "model": shape, "vocab": "bytes", "sources": (Source(corpus="a", rows=2),)}
    constant = Recipe(**common, window=5, steps=10, learning_rate=0.5)
    linear = Recipe(**common, window=5, steps=10, learning_rate=0.5, decay="linear")
    assert {constant.rate(step) for step in range(10)} == {0.5}
    assert [linear.rate(step) for step in (0, 5, 9)] == pytest.approx([0.5, 0.25, 0.05])
    assert linear.tokens_per_step == 10

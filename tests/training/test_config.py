import pytest

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe, Source


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
    [("sources", ()), ("window", 0), ("learning_rate", 0.0), ("l2", float("nan")), ("vocab", "syllables")],
)
def test_impossible_values_name_their_field(toy_recipe, field, value):
    """A recipe that cannot be run is refused when it is made, and in one line when it is read."""
    with pytest.raises(ValueError, match=field):
        toy_recipe(**{field: value})
    with pytest.raises(ValueError, match=rf"^not a recipe of this version: {field}: [^\n]+$"):
        Recipe.from_json({**toy_recipe().to_json(), field: value})


def test_contiguous_rows_have_no_jitter(toy_recipe):
    """Only read heads begin their rounds elsewhere."""
    with pytest.raises(ValueError, match="jitter_lines must be 0 where batching is contiguous"):
        toy_recipe(batching="contiguous", jitter_lines=5)


def test_pitfall_12_the_loss_has_the_scale_that_is_named(toy_recipe):
    """A sum over time is T times the mean over tokens, and what is a mean stays."""
    scales = ("sum_over_time", "mean_over_tokens")
    assert [toy_recipe(loss_scale=scale, window=70).loss_factor for scale in scales] == [70, 1]


def test_pitfall_14_the_published_optimiser_is_the_default():
    """Rectified, without momentum: beta1 is 0, not 0.9."""
    shape = ModelConfig(vocab_size=4, hidden_size=2)
    recipe = Recipe(
        name="r",
        model=shape,
        vocab="bytes",
        sources=(Source(corpus="a", rows=2),),
        window=5,
        steps=10,
        learning_rate=0.5,
    )
    assert (recipe.optimizer, recipe.beta1, recipe.beta2, recipe.epsilon) == ("radam", 0.0, 0.999, 1e-8)
    assert recipe.reset_probability == 0.01


def test_rates():
    """A constant rate stays; a linear one falls evenly and would reach zero after the last step."""
    shape = ModelConfig(vocab_size=4, hidden_size=2)
    common = {"name": "r", "model": shape, "vocab": "bytes", "sources": (Source(corpus="a", rows=2),)}
    constant = Recipe(**common, window=5, steps=10, learning_rate=0.5)
    linear = Recipe(**common, window=5, steps=10, learning_rate=0.5, decay="linear")
    assert {constant.rate(step) for step in range(10)} == {0.5}
    assert [linear.rate(step) for step in (0, 5, 9)] == pytest.approx([0.5, 0.25, 0.05])
    assert linear.tokens_per_step == 10

import pytest

from rlstm_training.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_its_own_name(name):
    """What the command is told is what the run is called."""
    assert RECIPES[name]().name == name


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

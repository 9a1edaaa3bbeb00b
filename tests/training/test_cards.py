from rlstm_training.calibrate import Trial
from rlstm_training.cards import calibration_section, model_card, with_section
from rlstm_training.config import Source


def test_the_card_names_what_made_the_model(corpora, toy_recipe):
    """Recipe, weights, every corpus with its forms and licence, and the results."""
    sources = (
        Source(corpus="three", rows=2),
        Source(corpus="three", rows=1, form="lf"),
        Source(corpus="one", rows=1),
    )
    recipe = toy_recipe(sources=sources)
    card = model_card(recipe, steps=40, valid={"three/lf": 2.3456})
    assert card.startswith("---\nlibrary_name: mogrifier-rlstm\n")
    assert "datasets:\n- three\n- one\n---\n" in card
    assert f"{recipe.model.num_parameters:,} weights" in card
    assert "Recipe `toy`: 40 steps of 32 tokens" in card
    assert "| three | 2 as_is, 1 lf | public domain |" in card
    assert "| three/lf | 2.346 |" in card


def test_an_own_folder_is_named_without_its_place(own_folder, toy_recipe):
    """A card goes to other people: no path of this machine."""
    recipe = toy_recipe(sources=(Source(corpus=str(own_folder), rows=4),))
    card = model_card(recipe, steps=1, valid={f"{own_folder}/as_is": 1.0})
    assert "| own | 4 as_is | the user's own text |" in card
    assert "| own/as_is | 1.000 |" in card
    assert str(own_folder.parent) not in card


def test_sections_are_added_and_replaced():
    """A section stands once, wherever it is, and the others stay."""
    card = with_section(with_section("# m\n\ntext\n", "One", "1"), "Two", "2")
    assert card == "# m\n\ntext\n\n## One\n\n1\n\n## Two\n\n2\n"
    assert with_section(card, "One", "new") == card.replace("\n1\n", "\nnew\n")
    assert with_section(card, "Two", "new") == card.replace("\n2\n", "\nnew\n")
    assert with_section("", "One", "1") == "## One\n\n1\n"


def test_the_calibration_table_has_a_row_a_trial():
    """Static first, then every trial; the chosen one is named."""
    trials = [
        Trial(rate=r, decay=0.0, bits_per_byte={"a": b, "b": 3.0}) for r, b in ((1e-4, 2.0), (3e-4, 1.0))
    ]
    section = calibration_section(trials, trials[1], {"a": 2.5, "b": 3.5})
    assert section.startswith("Rate 0.0003, decay 0:")
    assert section.splitlines()[3:] == [
        "| rate | decay | a | b | mean |",
        "| --- | --- | --- | --- | --- |",
        "| static |  | 2.5000 | 3.5000 | 3.0000 |",
        "| 0.0001 | 0 | 2.0000 | 3.0000 | 2.5000 |",
        "| 0.0003 | 0 | 1.0000 | 3.0000 | 2.0000 |",
    ]

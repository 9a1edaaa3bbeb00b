import math
from dataclasses import replace

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from rlstm_training.config import Source
from rlstm_training.tuning.space import RANGES, Search, drawn_recipe, least_budget, ranges_for

BUDGET = 9_000


def _values(search, number):
    """What draw ``number`` of a search gets, in a study without any other."""
    study = optuna.create_study(sampler=search.sampler(number))
    return study.ask(RANGES[search.ranges]).params


@pytest.fixture
def search(toy_recipe):
    return Search(recipe=toy_recipe(), ranges="words", budget=BUDGET, strategy="random")


def test_the_ranges_are_the_papers():
    """Both columns of mathematics §2.16, with T_max of §3."""
    published = {
        "words": {"input": 0.9, "cell": 0.95, "state": 0.8, "output": 0.95},
        "enwik8": {"input": 0.2, "cell": 0.2, "state": 0.25, "output": 0.25},
    }
    assert set(RANGES) == set(published)
    for name, rates in published.items():
        told = {key: (d.low, d.high, d.log) for key, d in RANGES[name].items()}
        assert told == {
            "learning_rate": (1e-3, 4e-3, True),
            "l2": (5e-6, 1e-3, True),
            "rounds": (0, 6, False),
            "rank": (-20, 100, False),
            "chrono_max": (math.exp(2), math.exp(5), True),
            **{f"dropout_{kind}": (0.0, high, False) for kind, high in rates.items()},
        }


def test_large_corpora_have_narrow_ranges(toy_recipe):
    """Bytes, and the letters of text8; not the characters of a small corpus, nor words."""
    text8 = (Source(corpus="text8", rows=4),)
    assert ranges_for(toy_recipe()) == "enwik8"
    assert ranges_for(toy_recipe(vocab="characters", sources=text8)) == "enwik8"
    assert ranges_for(toy_recipe(vocab="characters")) == "words"
    assert ranges_for(toy_recipe(vocab="words")) == "words"


@given(
    rounds=st.integers(0, 6),
    rank=st.integers(-20, 100),
    layers=st.integers(1, 6),
    tied=st.booleans(),
    cell=st.sampled_from(["rlstm", "lstm"]),
    more=st.integers(0, 10**7),
)
@settings(max_examples=200, deadline=None)
def test_every_draw_keeps_to_the_budget(toy_recipe, rounds, rank, layers, tied, cell, more):
    """At most the budget, one unit more would be over it, and no budget that Search takes is too small."""
    base = toy_recipe()
    base = replace(base, model=replace(base.model, num_layers=layers, tie_embeddings=tied, cell=cell))
    search = Search(recipe=base, ranges="words", budget=least_budget(base) + more)
    values = {key: d.high for key, d in RANGES["words"].items()} | {"rounds": rounds, "rank": rank}
    model = search.drawn(0, values).model
    assert model.num_parameters <= search.budget
    assert replace(model, hidden_size=model.hidden_size + 1).num_parameters > search.budget
    assert (model.mogrifier_rounds, model.mogrifier_rank) == (rounds, max(0, rank))


def test_a_budget_too_small_for_some_draw_is_refused(toy_recipe):
    """Before anything is trained."""
    with pytest.raises(ValueError, match="budget must be at least"):
        Search(recipe=toy_recipe(), ranges="words", budget=least_budget(toy_recipe()) - 1)


def test_a_draw_changes_what_was_drawn_and_nothing_else(toy_recipe):
    """Each value is in its field; the rest is the base's."""
    base = toy_recipe()
    values = {key: d.low for key, d in RANGES["words"].items()} | {"dropout_cell": 0.5, "rank": 7}
    drawn = drawn_recipe(base, values, budget=BUDGET)
    assert drawn.learning_rate == values["learning_rate"]
    assert drawn.chrono_max == values["chrono_max"]
    assert vars(drawn.dropout) == {"input": 0.0, "cell": 0.5, "state": 0.0, "output": 0.0}
    assert drawn.model.mogrifier_rank == 7
    fields = ("learning_rate", "l2", "chrono_max", "dropout", "model")
    assert replace(drawn, **{name: getattr(base, name) for name in fields}) == base


def test_l2_is_of_the_published_scale(toy_recipe, mean_over_tokens):
    """The same penalty in relation to the loss, whichever way the recipe states its loss."""
    values = {key: d.high for key, d in RANGES["words"].items()}
    mean = drawn_recipe(toy_recipe(window=8), values, budget=BUDGET)
    summed = drawn_recipe(toy_recipe(window=8, loss_scale="sum_over_time"), values, budget=BUDGET)
    assert summed.l2 == values["l2"]
    assert mean.l2 == pytest.approx(mean_over_tokens(summed).l2)


def test_the_same_seed_gives_the_same_draws(search):
    """Draw n depends on the seed and on n: not on which draws this process made before."""
    forwards = [_values(search, number) for number in range(6)]
    assert [_values(search, number) for number in reversed(range(6))] == forwards[::-1]
    assert len({values["learning_rate"] for values in forwards}) == 6
    assert _values(replace(search, seed=2), 0) != forwards[0]


def test_random_draws_fill_the_ranges(search):
    """Both halves of every range, halves on the logarithm's scale where that is drawn."""
    draws = [_values(search, number) for number in range(60)]
    for name, d in RANGES["words"].items():
        log = isinstance(d, FloatDistribution) and d.log
        middle = math.sqrt(d.low * d.high) if log else (d.low + d.high) / 2
        upper = sum(values[name] > middle for values in draws)
        assert all(d.low <= values[name] <= d.high for values in draws)
        assert 15 <= upper <= 45, name

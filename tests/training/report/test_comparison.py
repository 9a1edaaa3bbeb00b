import math
import shlex
import statistics
from dataclasses import replace

import pytest

from rlstm_model.network.dropout import DropoutRates
from rlstm_training.recipes import RECIPES
from rlstm_training.report.comparison import best_first, command_for, differences, groups_of, row_of
from rlstm_training.report.runs import read_runs
from rlstm_training.run import RunDirectory


@pytest.fixture
def runs(make_run, tmp_path):
    """Makes runs, a call for each set of arguments, and reads them all."""

    def read(*several):
        for number, changes in enumerate(several):
            make_run(f"run-{number}", **changes)
        return read_runs([tmp_path])[0]

    return read


def test_a_row_holds_a_runs_figures(runs):
    """The best evaluation in the published measure and what it was of; tokens, clock, median speed."""
    reset = {"step": 35, "reset": {"to_step": 20, "rate_scale": 0.9, "why": "x"}}
    (run,) = runs({"losses": (3.0, 2.0, 2.5), "records": [reset]})
    row = row_of(run)
    assert row.best == pytest.approx(2.0 / math.log(2))
    assert (row.measure, row.best_step, row.best_weights) == ("bits per byte", 20, "average of 20")
    assert (row.step, row.steps, row.tokens) == (30, 40, 30 * 4 * 8)
    assert (row.seconds, row.tokens_per_second, row.resets) == (60.0, 84.0, 1)
    assert row.weights == run.recipe.model.num_parameters
    assert (row.corpus, row.rank) == ("three, one", 3)


def test_a_run_without_records_has_a_row(runs):
    """With nothing in it that was never measured."""
    row = row_of(*runs({"losses": ()}))
    assert row.best is row.best_step is row.seconds is row.tokens_per_second is None


def test_only_what_differs_is_told(runs):
    """One value a group, in order; seeds and names tell nothing apart."""
    told = differences(
        groups_of(
            runs(
                {"seed": 1},
                {"seed": 2, "name": "other"},
                {"learning_rate": 0.5, "dropout": DropoutRates(input=0.25)},
            )
        )
    )
    assert told == {
        "learning_rate": ["0.01", "0.5"],
        "dropout.input": ["0.1", "0.25"],
        "dropout.cell": ["0.1", "0"],
        "dropout.state": ["0.1", "0"],
        "dropout.output": ["0.1", "0"],
    }


def test_numbers_are_shortened_where_they_stay_apart(runs):
    """Four digits, or all."""
    told = differences(groups_of(runs({"l2": 1 / 3}, {"l2": 2 / 3, "learning_rate": 0.010000001})))
    assert told == {"l2": ["0.3333", "0.6667"], "learning_rate": ["0.01", "0.010000001"]}


def test_seeds_are_one_group_with_its_spread(runs):
    """Over finished runs: what was cut off would only blur it."""
    results = (2.0, 2.5, 1.5)
    several = [{"seed": seed, "losses": (3.0, nats), "finished": True} for seed, nats in enumerate(results)]
    several.append({"seed": 9, "losses": (0.5,)})
    (group,) = groups_of(runs(*several))
    bits = [nats / math.log(2) for nats in results]
    assert len(group.runs) == 4
    assert group.mean == pytest.approx(statistics.fmean(bits))
    assert group.spread == pytest.approx(statistics.stdev(bits))
    assert group.label == "run-0 and 3 more"


def test_a_single_result_has_no_spread(runs):
    """One is no sample."""
    (group,) = groups_of(runs({"finished": True}))
    assert group.mean is not None
    assert group.spread is None


def test_the_best_comes_first_within_its_measure(runs):
    """Perplexities and bits are not mixed; runs without a result are last."""
    several = [
        {"losses": (3.0,)},
        {"losses": (1.0,), "vocab": "words"},
        {"losses": ()},
        {"losses": (2.0,)},
    ]
    assert [run.label for run in best_first(runs(*several))] == ["run-3", "run-0", "run-2", "run-1"]


def test_the_command_trains_the_same_recipe(make_run, tmp_path, monkeypatch):
    """By name where the collection has it, else by the file; whatever the folder is called."""
    named = replace(RECIPES["tiny"](), steps=7, seed=3)
    for name, recipe in (("named", named), ("odd; 'folder", replace(named, window=31))):
        with RunDirectory.open(tmp_path / name, recipe):
            pass
    odd, plain = sorted(read_runs([tmp_path])[0], key=lambda run: run.recipe.window)
    assert shlex.split(command_for(plain)) == [
        *("rlstm", "train", "tiny", "--steps", "7", "--seed", "3", "--run"),
        f"{plain.folder}-again",
    ]
    assert shlex.split(command_for(odd)) == [
        *("rlstm", "train", "--recipe", str(odd.folder / "recipe.json"), "--run"),
        f"{odd.folder}-again",
    ]
    assert RunDirectory(odd.folder).recipe() == odd.recipe

"""`rlstm tune`: the paper's ranges, draws that no kill loses or repeats, and the best recipe of all."""

import json
import math
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace

import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from rlstm_training.config import Recipe, Source
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.trainer import Trainer
from rlstm_training.tune import (
    MOST_FRUITLESS,
    RANGES,
    Search,
    Study,
    StudyError,
    for_search,
    ranges_for,
    run_search,
)

BUDGET = 9_000
LOWEST = {key: d.low for key, d in RANGES["words"].items()}
HIGHEST = {key: d.high for key, d in RANGES["words"].items()}


@pytest.fixture
def search(toy_recipe):
    recipe = toy_recipe(steps=8, evaluate_every=2, checkpoint_every=3)
    return Search(recipe=recipe, ranges="enwik8", budget=BUDGET, strategy="random")


@pytest.fixture
def opened(tmp_path, search):
    """Opens the study, as each process does; evaluated at every second of eight steps."""
    with ExitStack() as stack:

        def open_study(name="study", **changes):
            return stack.enter_context(Study.open(tmp_path / f"{name}.db", replace(search, **changes)))

        yield open_study


def test_the_ranges_are_the_papers():
    """Both columns of mathematics §2.16, with T_max of §3."""
    published = {
        "words": {"input": 0.9, "cell": 0.95, "state": 0.8, "output": 0.95},
        "enwik8": {"input": 0.2, "cell": 0.2, "state": 0.25, "output": 0.25},
    }
    assert set(RANGES) == set(published)
    for name, rates in published.items():
        told = {key: (d.low, d.high, getattr(d, "log", False)) for key, d in RANGES[name].items()}
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
    assert ranges_for(toy_recipe(vocab="characters")) == ranges_for(toy_recipe(vocab="words")) == "words"


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
    """At most the budget, one unit more would be over it; the least that Search takes is enough for all."""
    base = toy_recipe()
    base = replace(base, model=replace(base.model, num_layers=layers, tie_embeddings=tied, cell=cell))
    with pytest.raises(ValueError, match="budget must be at least") as refused:
        Search(recipe=base, ranges="words", budget=1)
    least = int(str(refused.value).split()[5].replace(",", ""))
    search = Search(recipe=base, ranges="words", budget=least + more)
    model = search.drawn(0, HIGHEST | {"rounds": rounds, "rank": rank}).model
    assert model.num_parameters <= search.budget
    assert replace(model, hidden_size=model.hidden_size + 1).num_parameters > search.budget
    assert (model.mogrifier_rounds, model.mogrifier_rank) == (rounds, max(0, rank))


def test_a_draw_changes_what_was_drawn_and_nothing_else(search):
    """Each value is in its field; the rest is the base's."""
    drawn = search.drawn(3, LOWEST | {"dropout_cell": 0.5, "rank": 7})
    assert (drawn.learning_rate, drawn.chrono_max) == (LOWEST["learning_rate"], LOWEST["chrono_max"])
    assert vars(drawn.dropout) == {"input": 0.0, "cell": 0.5, "state": 0.0, "output": 0.0}
    assert (drawn.name, drawn.model.mogrifier_rank) == ("toy-draw-3", 7)
    fields = ("name", "learning_rate", "l2", "chrono_max", "dropout", "model")
    assert replace(drawn, **{name: getattr(search.recipe, name) for name in fields}) == search.recipe


def test_l2_is_of_the_published_scale(search, mean_over_tokens):
    """The same penalty in relation to the loss, whichever way the recipe states its loss."""
    summed_recipe = replace(search.recipe, loss_scale="sum_over_time")
    mean, summed = search.drawn(0, HIGHEST), replace(search, recipe=summed_recipe).drawn(0, HIGHEST)
    assert summed.l2 == HIGHEST["l2"]
    assert mean.l2 == pytest.approx(mean_over_tokens(summed).l2)


def _drawn(search, number):
    """What draw ``number`` of a search gets, in a study without any other."""
    return optuna.create_study(sampler=search.sampler(number)).ask(RANGES[search.ranges]).params


def test_random_draws_fill_the_ranges_and_depend_on_nothing_else(search):
    """Draw n depends on the seed and on n; both halves of every range come, on its own scale."""
    draws = [_drawn(search, number) for number in range(60)]
    assert [_drawn(search, number) for number in reversed(range(6))] == draws[5::-1]
    assert _drawn(replace(search, seed=2), 0) != draws[0]
    for name, d in RANGES[search.ranges].items():
        log = isinstance(d, FloatDistribution) and d.log
        middle = math.sqrt(d.low * d.high) if log else (d.low + d.high) / 2
        assert all(d.low <= values[name] <= d.high for values in draws)
        assert 15 <= sum(values[name] > middle for values in draws) <= 45, name


def _finish(study, draw, *losses, outcome="done"):
    """What training does, in short: validations, a checkpoint, the end."""
    for step, nats in enumerate(losses, start=1):
        draw.trial.report(nats, step)
    draw.run.save(len(losses), {"w": torch.zeros(1)}, {"finished": True})
    study.end(draw, outcome, min(losses, default=None))
    draw.run.close()


def test_draws_are_handed_out_until_there_are_enough(opened):
    """Each is numbered, has a run directory of its own and is nobody else's while that is open."""
    here, there = opened(), opened()
    draws = [here.take(3), there.take(3), here.take(3)]
    assert [draw.number for draw in draws] == [0, 1, 2]
    assert all(draw.run.recipe() == draw.recipe for draw in draws)
    assert here.take(3) is there.take(3) is None
    assert [result.outcome for result in here.results()] == ["running"] * 3
    for draw in draws:
        _finish(there, draw, 1.0)
    assert here.take(3) is None


def test_deaths_do_not_change_a_random_search(opened):
    """A dead trial's draw comes back first, in its run directory, with its values, for whoever asks next."""
    plain, broken = opened("plain"), opened()
    expected = [plain.take(5) for _ in range(5)]
    for fruit in range(1, 6):
        left = [opened().take(5)]
        for _ in range(2):
            left[-1].run.save(fruit, {}, {})
            left[-1].run.close()
            left.append(opened().take(5))
        assert len({(draw.number, draw.recipe.to_json()["l2"], draw.run.folder) for draw in left}) == 1
        _finish(broken, left[-1], 1.0)
    ended = sorted(broken.results(), key=lambda result: result.number)
    assert [result.recipe for result in ended] == [draw.recipe for draw in expected]
    assert {result.outcome for result in ended} == {"done"}
    for draw in expected:
        draw.run.close()


def test_a_death_between_drawing_and_numbering_costs_nothing(opened, tmp_path):
    """A trial that never got its number is dropped; the number goes to the next."""
    study = opened()
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    optuna.load_study(study_name="search", storage=storage).ask(RANGES["enwik8"])
    storage.remove_session()
    storage.engine.dispose()
    draw = study.take(1)
    assert draw.number == 0
    _finish(study, draw, 1.0)
    assert [(result.number, result.outcome) for result in study.results()] == [(0, "done")]


def test_a_draw_that_kills_every_process_is_given_up(opened):
    """After so many deaths without a new checkpoint; one that gets on is tried for ever."""
    for attempt in range(3 * MOST_FRUITLESS):
        draw = opened().take(1)
        assert draw.number == 0
        if attempt < 2 * MOST_FRUITLESS:
            draw.run.save(attempt + 1, {}, {})
        draw.run.close()
    study = opened()
    assert study.take(1) is None
    assert [result.outcome for result in study.results()] == ["fail"]


def test_the_best_recipe_and_its_weights_are_kept(opened):
    """The others keep their records and headers; a draw in progress is not touched."""
    study = opened()
    running = study.take(9)
    running.run.save(1, {"w": torch.zeros(1)}, {})
    draws = [study.take(9) for _ in range(4)]
    losses = ([3.0, 2.5], [4.0, 2.0, 2.1], [2.2], [1.0])
    for draw, own, outcome in zip(draws, losses, ("done", "done", "pruned", "diverged"), strict=True):
        _finish(study, draw, *own, outcome=outcome)
    best = draws[1]
    assert Recipe.from_json(json.loads(study.best_recipe.read_text())) == best.recipe
    whole = [draw.number for draw in (running, *draws) if any(draw.run.folder.rglob("*.safetensors"))]
    assert whole == [running.number, best.number]
    assert all(RunDirectory(draw.run.folder).finished for draw in draws)
    order = [
        (2, "done", 2.0),
        (1, "done", 2.5),
        (4, "diverged", 1.0),
        (3, "pruned", 2.2),
        (0, "running", None),
    ]
    assert [(result.number, result.outcome, result.nats) for result in study.results()] == order
    running.run.close()


def test_a_study_belongs_to_one_search(opened, toy_recipe):
    """The error names what differs; the same search is let in."""
    opened()
    opened()
    with pytest.raises(StudyError, match="of another search: budget, seed differ"):
        opened(budget=9_001, seed=2)
    with pytest.raises(StudyError, match="recipe differ"):
        opened(recipe=toy_recipe(steps=41))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("study", r"must end in \.db"),
        ("text.db", r"text\.db: .*not a database"),
        ("why?.db", "cannot hold any of"),
        ("taken.db", "taken: cannot be used"),
        ("folder.db", r"folder\.db: .*unable to open"),
    ],
)
def test_what_is_no_study_is_refused(tmp_path, search, name, message):
    """One clear error, and the file stays as it was."""
    (tmp_path / "text.db").write_text("dear diary\n" * 200)
    (tmp_path / "taken").touch()
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StudyError, match=message), Study.open(tmp_path / name, search):
        pass
    assert (tmp_path / "text.db").read_text() == "dear diary\n" * 200


def test_what_fails_later_is_named(opened, tmp_path):
    """A foreign run directory is not trained over; what the storage raises is the study's own error."""
    study = opened()
    (tmp_path / "study" / "runs" / "0000").mkdir(parents=True)
    (tmp_path / "study" / "runs" / "0000" / "diary.txt").touch()
    with pytest.raises(RunError, match="is no run directory"):
        study.take(1)
    with closing(sqlite3.connect(tmp_path / "study.db")) as file:
        file.execute("DROP TABLE trials")
    with pytest.raises(StudyError, match=r"study\.db: .*no such table"):
        study.take(1)


def _curve(study, number):
    run = RunDirectory(study.folder / "runs" / f"{number:04d}")
    return [(record["step"], record["nats"]) for record in run.metrics() if "valid" in record]


def _results(study):
    return sorted((result.number, result.outcome, result.nats, result.step) for result in study.results())


def test_every_draw_is_trained_and_told(opened, toy_texts):
    """A draw's result is the best of its validation curve; without validation text there is none."""
    study = opened()
    run_search(study, toy_texts, draws=3)
    for number, outcome, nats, step in _results(study):
        curve = _curve(study, number)
        assert [at for at, _ in curve] == [2, 4, 6, 8]
        assert (outcome, step) == ("done", 8)
        assert nats == min(losses["reported"] for _, losses in curve)
    assert len(study.results()) == 3
    with pytest.raises(StudyError, match="needs validation text"):
        run_search(study, type(toy_texts)(train=toy_texts.train, valid={}), draws=4)


@pytest.mark.parametrize(("prune", "outcome", "step"), [(True, "pruned", 2), (False, "done", 8)])
def test_a_draw_that_is_behind_is_cut_off(opened, toy_texts, prune, outcome, step):
    """After the first quarter and below the median of others; not with pruning off."""
    study = opened()
    for _ in range(5):
        draw = study.take(5)
        for at in (2, 4, 6, 8):
            draw.trial.report(0.1, at)
        study.end(draw, "done", 0.1)
        draw.run.close()
    run_search(study, toy_texts, draws=6, prune=prune)
    expected = (5, outcome, pytest.approx(math.log(256), rel=0.2), step)
    assert [result for result in _results(study) if result[0] == 5] == [expected]


def test_a_divergence_ends_its_draw_and_a_failure_keeps_it(opened, toy_texts, monkeypatch):
    """Nothing finite: the search goes on. A full disk: it ends, and the draw is taken up again."""
    study = opened()

    def diverge(trainer, rate_scale):
        raise FloatingPointError("step 1: loss nan")

    def full(*args, **kwargs):
        raise RunError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", diverge)
        run_search(study, toy_texts, draws=2)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", full)
        with pytest.raises(RunError, match="disk full"):
            run_search(study, toy_texts, draws=3)
    run_search(study, toy_texts, draws=3)
    assert [outcome for _, outcome, _, _ in _results(study)] == ["diverged", "diverged", "done"]


def test_a_short_search_is_evaluated_often(toy_recipe):
    """Ten times at least, where there are as many steps; a recipe that does so anyway stays as it is."""
    assert for_search(toy_recipe(evaluate_every=1000), 500).evaluate_every == 50
    assert for_search(toy_recipe(evaluate_every=1000), 3).evaluate_every == 1
    often = toy_recipe(evaluate_every=3, steps=100)
    assert for_search(often, None) == often


@pytest.fixture
def typed(rlstm, own_folder, tmp_path):
    """Searches around the tiny recipe, two steps a draw, on a folder of the user's own."""
    fixed = ["tune", "tiny", "--corpus", own_folder, "--study", tmp_path / "study.db", "--steps", 2]
    return lambda *words: rlstm(*fixed, "--threads", 1, *words)


def test_a_search_gives_a_recipe_to_train(rlstm, typed, tmp_path):
    """The best draw's recipe is a file that `rlstm train --recipe` takes as any other."""
    done = typed("--trials", 2, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    best = told["draws"][0]
    assert [draw["outcome"] for draw in told["draws"]] == ["done", "done"]
    assert best["nats"] == min(draw["nats"] for draw in told["draws"])
    run = ["--run", tmp_path / "run", "--steps", 1, "--threads", 1]
    trained = rlstm("train", "--recipe", told["best_recipe"], *run)
    assert trained.exit_code == 0, trained.output
    kept = Recipe.from_json(json.loads((tmp_path / "run" / "recipe.json").read_text()))
    assert kept == replace(Recipe.from_json(best["recipe"]), steps=1)


def test_the_same_command_goes_on(typed):
    """A search that has its draws tries no more; a larger number tries the rest. The table names the best."""
    assert typed("--random", 1).stdout.splitlines()[1].split()[1] == "done"
    again = typed("--random", 1)
    assert "bits a token" not in again.stderr
    assert "1 draws: 1 done" in again.stdout
    assert "2 draws: 2 done" in typed("--random", 2).stdout
    assert "best recipe: " in again.stdout


def test_wrong_usage_is_said(rlstm, typed, tmp_path):
    """Exit code 2 for what was typed, 1 for a study of another search."""
    (tmp_path / "broken.json").write_text('{"format_version": 0}')
    assert typed("--trials", 1).exit_code == 0
    for answer, code, message in [
        (typed("--trials", 1, "--random", 1), 2, "either --trials or --random"),
        (typed("--budget", 100), 2, "budget must be at least"),
        (typed("--ranges", "all"), 2, "all"),
        (typed("--trials", 1, "--seed", 2), 1, "another search: seed differ"),
        (rlstm("tune"), 2, "a file with --recipe"),
        (rlstm("tune", "tiny", "--recipe", tmp_path / "broken.json"), 2, "a file with --recipe"),
        (rlstm("tune", "--recipe", tmp_path / "broken.json"), 2, "format_version must be"),
        (rlstm("train", "--recipe", tmp_path / "gone.json"), 2, "No such file"),
    ]:
        assert answer.exit_code == code, message
        assert message in answer.stderr

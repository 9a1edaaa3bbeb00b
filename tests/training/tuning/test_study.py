import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace

import optuna
import pytest
import torch

from rlstm_training.config import Recipe
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.tuning.space import RANGES, Search
from rlstm_training.tuning.study import MOST_FRUITLESS, Study, StudyError


@pytest.fixture
def search(toy_recipe):
    return Search(recipe=toy_recipe(), ranges="enwik8", budget=9_000, strategy="random")


@pytest.fixture
def opened(tmp_path, search):
    """Opens the study, as each process does."""
    with ExitStack() as stack:

        def open_study(name="study", **changes):
            return stack.enter_context(Study.open(tmp_path / f"{name}.db", replace(search, **changes)))

        yield open_study


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


def test_a_dead_trials_draw_comes_back_first(opened):
    """Under its number, with its values, in its run directory, for whoever asks next."""
    study = opened()
    left, other = study.take(5), study.take(5)
    left.run.close()
    again = opened().take(5)
    assert (again.number, again.recipe, again.run.folder) == (left.number, left.recipe, left.run.folder)
    new = study.take(5)
    assert new.number == 2
    for draw in (again, other, new):
        draw.run.close()


def test_deaths_do_not_change_a_random_search(opened):
    """Draws abandoned on the way neither repeat others nor shift those that follow."""
    plain, broken = opened("plain"), opened()
    expected = [plain.take(5) for _ in range(5)]
    for fruit in range(1, 6):
        for _ in range(2):
            draw = opened().take(5)
            draw.run.save(fruit, {}, {})
            draw.run.close()
        _finish(broken, opened().take(5), 1.0)
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
    for attempt in range(2 * MOST_FRUITLESS):
        draw = opened().take(1)
        draw.run.save(attempt + 1, {}, {})
        draw.run.close()
    assert draw.number == 0
    for _ in range(MOST_FRUITLESS):
        draw = opened().take(1)
        assert draw.number == 0
        draw.run.close()
    study = opened()
    assert study.take(1) is None
    assert [result.outcome for result in study.results()] == ["given up"]


def test_the_best_recipe_and_its_weights_are_kept(opened):
    """The others keep their records and headers; a draw in progress is not touched."""
    study = opened()
    running = study.take(9)
    running.run.save(1, {"w": torch.zeros(1)}, {})
    draws = [study.take(9) for _ in range(4)]
    for draw, losses, outcome in zip(
        draws,
        ([3.0, 2.5], [4.0, 2.0, 2.1], [2.2], [1.0]),
        ("done", "done", "pruned", "diverged"),
        strict=True,
    ):
        _finish(study, draw, *losses, outcome=outcome)
    best = draws[1]
    assert Recipe.from_json(json.loads(study.best_recipe.read_text())) == best.recipe
    whole = [draw.number for draw in (running, *draws) if any(draw.run.folder.rglob("*.safetensors"))]
    assert whole == [running.number, best.number]
    assert all(RunDirectory(draw.run.folder).finished for draw in draws)
    assert [(result.number, result.outcome, result.nats) for result in study.results()] == [
        (2, "done", 2.0),
        (1, "done", 2.5),
        (4, "diverged", 1.0),
        (3, "pruned", 2.2),
        (0, "running", None),
    ]
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
    with pytest.raises(StudyError, match=message):
        Study.open(tmp_path / name, search)
    assert (tmp_path / "text.db").read_text() == "dear diary\n" * 200


def test_a_database_that_fails_later_is_named(opened, tmp_path):
    """Whatever the storage raises becomes the study's own error."""
    study = opened()
    with closing(sqlite3.connect(tmp_path / "study.db")) as file:
        file.execute("DROP TABLE trials")
    with pytest.raises(StudyError, match=r"study\.db: .*no such table"):
        study.take(1)


def test_a_foreign_run_directory_is_an_error(opened, tmp_path):
    """A draw is not trained over somebody's files."""
    (tmp_path / "study" / "runs" / "0000").mkdir(parents=True)
    (tmp_path / "study" / "runs" / "0000" / "diary.txt").touch()
    with pytest.raises(RunError, match="is no run directory"):
        opened().take(1)

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.commands.train import train
from rlstm_training.commands.tune import tune
from rlstm_training.config import Recipe
from rlstm_training.recipes import RECIPES


@pytest.fixture
def rlstm():
    """Types a command; the answer has exit_code, stdout and stderr."""
    app = typer.Typer()
    for function in (train, tune):
        app.command()(function)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def search(rlstm, own_folder, tmp_path):
    """Searches around the tiny recipe, two steps a draw, on a folder of the user's own."""
    fixed = ["tune", "tiny", "--corpus", own_folder, "--study", tmp_path / "study.db", "--steps", 2]
    return lambda *words: rlstm(*fixed, "--threads", 1, *words)


def test_a_search_gives_a_recipe_to_train(rlstm, search, own_folder, tmp_path):
    """The best draw's recipe is a file that `rlstm train --recipe` takes as any other."""
    done = search("--trials", 2, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    best = told["draws"][0]
    assert [draw["outcome"] for draw in told["draws"]] == ["done", "done"]
    assert best["nats"] == min(draw["nats"] for draw in told["draws"])
    recipe = Recipe.from_json(best["recipe"])
    assert recipe.model.num_parameters <= RECIPES["tiny"]().model.num_parameters
    trained = rlstm(
        "train", "--recipe", told["best_recipe"], "--run", tmp_path / "run", "--steps", 1, "--threads", 1
    )
    assert trained.exit_code == 0, trained.output
    kept = Recipe.from_json(json.loads((tmp_path / "run" / "recipe.json").read_text()))
    assert kept.learning_rate == recipe.learning_rate
    assert (tmp_path / "run" / recipe.name / "config.json").exists()


def test_the_same_command_goes_on(search):
    """A search that has its draws tries no more; a larger number tries the rest. The table names the best."""
    assert search("--random", 1).stdout.splitlines()[1].split()[1] == "done"
    again = search("--random", 1)
    assert "bits a token" not in again.stderr
    assert "1 draws: 1 done" in again.stdout
    assert "2 draws: 2 done" in search("--random", 2).stdout
    assert "best recipe: " in again.stdout


def test_wrong_usage_is_said(rlstm, search, tmp_path):
    """Exit code 2 for what was typed, 1 for a study of another search."""
    (tmp_path / "broken.json").write_text('{"format_version": 0}')
    assert search("--trials", 1).exit_code == 0
    for answer, code, message in [
        (search("--trials", 1, "--random", 1), 2, "either --trials or --random"),
        (search("--budget", 100), 2, "budget must be at least"),
        (search("--ranges", "all"), 2, "all"),
        (search("--trials", 1, "--seed", 2), 1, "another search: seed differ"),
        (rlstm("tune"), 2, "a file with --recipe"),
        (rlstm("tune", "tiny", "--recipe", tmp_path / "broken.json"), 2, "a file with --recipe"),
        (rlstm("tune", "--recipe", tmp_path / "broken.json"), 2, "format_version must be"),
        (rlstm("train", "--recipe", tmp_path / "gone.json"), 2, "No such file"),
    ]:
        assert answer.exit_code == code, message
        assert message in " ".join(answer.stderr.replace("│", " ").split())

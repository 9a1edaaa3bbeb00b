"""The GPU run in miniature, on the CPU."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.commands.gpu import bench_gpu
from rlstm_training.config import Recipe


@pytest.fixture
def run(own_folder):
    """Types the command, for a folder of text and hardly any time."""
    app = typer.Typer()
    app.command()(bench_gpu)
    tiny = ["--recipe", "tiny", "--corpus", str(own_folder), "--minutes", "0.01", "--threads", "1"]

    def call(*words):
        return CliRunner().invoke(app, [*tiny, *words])

    return call


def test_both_models_are_told_side_by_side(run):
    """A table with a column for each; how training gets on is on standard error."""
    done = run("--device", "cpu")
    assert done.exit_code == 0, done.output
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["RLSTM", "torch.nn.LSTM"]
    assert [row.rsplit(maxsplit=2)[0].strip() for row in rows] == [
        "weights",
        "steps",
        "tokens/s in training",
        "iterates averaged",
        "validation perplexity",
        "test perplexity",
        "test tokens read one by one",
        "static perplexity",
        "dynamic perplexity",
    ]
    assert "RLSTM: step " in done.stderr
    assert "torch.nn.LSTM: step 1" in done.stderr


def test_json_says_what_was_run_and_what_came_of_it(run):
    """One object: recipe, device, and each model's figures."""
    done = run("--device", "cpu", "--json")
    told = json.loads(done.stdout)
    recipe = Recipe.from_json(told["recipe"])
    assert (recipe.name, recipe.decay, told["device"], told["minutes"]) == ("tiny", "constant", "cpu", 0.01)
    assert [model["model"] for model in told["models"]] == ["RLSTM", "torch.nn.LSTM"]
    for model in told["models"]:
        for name in ("weights", "steps", "tokens_per_second", "test_perplexity", "static_perplexity"):
            assert model[name] > 0


def test_what_cannot_be_is_refused(run):
    """A device that is not there, and dropout of everything."""
    assert "no such CUDA device" in run("--device", "cuda:99").stderr
    refused = run("--device", "cpu", "--recipe", "wikitext-2-35m-rlstm", "--dropout-scale", "2")
    assert refused.exit_code == 2
    assert "--dropout-scale" in refused.stderr

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.bench import speed
from rlstm_training.commands.bench import bench_train

QUICK = ["--hidden", 8, "--rank", 2, "--vocab", 11, "--batch", 2, "--window", 3, "--seconds", 0]


@pytest.fixture
def rlstm_bench_train(monkeypatch):
    """Types `rlstm bench train` and what follows."""
    monkeypatch.setattr(speed, "SGEMM_SIZE", 16)
    app = typer.Typer()
    app.command()(bench_train)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_a_table_shows_every_model(rlstm_bench_train):
    """One line a model, with its ratios; torch's own is 1."""
    done = rlstm_bench_train(*QUICK)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0].strip() for line in lines[1:]] == [
        "RLSTM, 4 rounds",
        "LSTM, 4 rounds",
        "RLSTM, 0 rounds",
        "LSTM, 0 rounds",
        "torch.nn.LSTM",
    ]
    assert lines[-1].split()[-1] == "1.00"


def test_json_says_what_was_measured(rlstm_bench_train):
    """The workload as given, and figures as numbers."""
    done = rlstm_bench_train(*QUICK, "--precision", "bfloat16", "--rounds", 2, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["workload"] == {
        "hidden": 8,
        "layers": 2,
        "rounds": 2,
        "rank": 2,
        "vocabulary": 11,
        "batch": 2,
        "window": 3,
        "precision": "bfloat16",
    }
    assert told["threads"] == 1
    assert [row["name"] for row in told["rows"]][:2] == ["RLSTM, 2 rounds", "LSTM, 2 rounds"]
    assert told["rows"][0]["our_lstm"] > 0


@pytest.mark.parametrize("option", ["--hidden", "--batch", "--window", "--threads"])
def test_nothing_is_not_measured(rlstm_bench_train, option):
    """Zero units, rows, tokens or threads are wrong usage, and the message names the option."""
    done = rlstm_bench_train(*QUICK, option, 0)
    assert done.exit_code == 2
    assert option in done.stderr

"""`rlstm bench peers` on a model of no size."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.bench import gpt2
from rlstm_training.commands.peers import bench_peers

QUICK = ["--sessions", 2, "--context", 3, "--rounds", 1, "--seconds", 0, "--threads", 1]


@pytest.fixture
def bench(with_rules, monkeypatch):
    """Types the command, as where there is no GPT-2."""
    monkeypatch.setattr(gpt2, "LIBRARY", "a_library_that_is_not_there")
    app = typer.Typer()
    app.command()(bench_peers)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in (with_rules, *QUICK, *words)])


def test_json_has_every_peer(bench):
    """Under which conditions, how fast, and how many times as fast we are."""
    done = bench("--rule", "subspace", "--json")
    assert done.exit_code == 0, done.output
    assert "GPT-2 is left out" in done.stderr
    told = json.loads(done.stdout)
    assert told["conditions"] == {"sessions": 2, "context": 3, "threads": 1, "device": "cpu"}
    assert [(row["task"], row["name"]) for row in told["rows"]] == [
        ("learning", "ours: subspace of 300, 2 sessions"),
        ("learning", "ours: full weights, one session at a time"),
        ("learning", "eager autograd: full weights, one session at a time"),
        ("static", "ours, 2 rows"),
        ("static", "torch.nn.LSTM, 2 rows"),
    ]
    assert all(row["tokens_per_second"] > 0 and row["weights"] > 0 for row in told["rows"])
    assert told["rows"][0]["ours"] == told["rows"][3]["ours"] == 1.0


def test_a_table_for_people(bench):
    """A line a peer; without --rule ours is the model's default."""
    done = bench()
    assert done.exit_code == 0, done.output
    header, first, *others = done.stdout.splitlines()
    assert header.split()[-3:] == ["ours", "is", "x"]
    assert first.startswith("learning, ours: full of ")
    assert first.split()[-1] == "1.00"
    assert len(others) == 4


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--rule", "whole"], "--rule"), (["--sessions", 0], "--sessions"), (["--rounds", 0], "--rounds")],
)
def test_wrong_usage_is_named(bench, options, name):
    """Exit code 2 and the option's name."""
    done = bench(*options)
    assert done.exit_code == 2
    assert name in done.stderr

"""`rlstm bench peers` on a model of no size."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.bench import gpt2, works
from rlstm_training.commands.peers import bench_peers

QUICK = ["--sessions", 2, "--context", 3, "--rounds", 1, "--seconds", 0]


@pytest.fixture
def command(monkeypatch):
    """Types the command, as where there is no GPT-2, and with a matrix product of no size."""
    monkeypatch.setattr(gpt2, "LIBRARY", "a_library_that_is_not_there")
    monkeypatch.setattr(works, "SGEMM_SIZE", 32)
    app = typer.Typer()
    app.command()(bench_peers)

    def call(*words, threads=1):
        return CliRunner().invoke(app, [str(word) for word in (*QUICK, "--threads", threads, *words)])

    return call


@pytest.fixture
def bench(command, with_rules):
    return lambda *words, **named: command(with_rules, *words, **named)


@pytest.mark.parametrize("threads", [1, 2])
def test_json_has_every_peer(bench, threads):
    """Under which conditions, how fast, on which threads, and how many times as fast we are."""
    done = bench("--rule", "subspace", "--json", threads=threads)
    assert done.exit_code == 0, done.output
    assert "GPT-2 is left out: pip install 'mogrifier-rlstm[peers]'" in done.stderr
    told = json.loads(done.stdout)
    assert told["model"] == "tiny"
    assert told["conditions"] == {"sessions": 2, "context": 3, "threads": threads, "device": "cpu"}
    rows = told["rows"]
    assert [(row["task"], row["name"]) for row in rows] == [
        ("sgemm", "F.linear, 2,048 x 2,048 x 2,048"),
        ("learning", "ours: subspace of 300, 2 sessions"),
        ("learning", "ours: subspace of 300, 2 sessions of 2 experts"),
        ("learning", "ours: subspace of 300, 2 sessions of 4 experts"),
        ("learning", "ours: full weights, one session at a time"),
        ("learning", "eager autograd: full weights, one session at a time"),
        ("static", "ours, 2 rows"),
        ("static", "torch.nn.LSTM, 2 rows"),
    ]
    assert all(row["tokens_per_second"] > 0 and row["of_sgemm"] > 0 for row in rows)
    assert all(row["weights"] > 0 for row in rows[1:])
    assert [row["rows_per_second"] / row["tokens_per_second"] for row in rows[1:5]] == [1, 2, 4, 1]
    assert [row["threads"] for row in rows[:5]] == [threads] * 4 + [1]
    assert rows[1]["ours"] == rows[6]["ours"] == rows[0]["of_sgemm"] == 1.0


def test_the_ratios_are_those_of_the_rows(bench):
    """By name: learning beside a peer and beside static, static beside the matrix product."""
    told = json.loads(bench("--rule", "subspace", "--json").stdout)
    learning, eager, static = (told["rows"][place] for place in (1, 5, 6))
    assert told["ratios"] == pytest.approx(
        {
            "learning/peer": eager["ours"],
            "learning/static": learning["tokens_per_second"] / static["tokens_per_second"],
            "static/sgemm": static["of_sgemm"],
        }
    )


def test_a_table_for_people(bench):
    """A line a peer and a line a ratio; without --rule ours is the model's default."""
    done = bench()
    assert done.exit_code == 0, done.output
    header, product, first, *others = done.stdout.splitlines()
    assert " ".join(header.split()) == "weights threads tokens/s from to rows/s of sgemm ours is x"
    assert product.startswith("sgemm, F.linear")
    assert first.startswith("learning, ours: full of ")
    assert first.split()[-1] == "1.00"
    names = [line.split()[0] for line in others[-3:]]
    assert (len(others), names) == (6 + 3, ["learning/peer", "learning/static", "static/sgemm"])
    assert others[-3].endswith("learning 2 sessions over one session at a time, eager autograd")


def test_an_untrained_model_needs_no_checkpoint(command):
    """Of so many units, with a subspace of its own."""
    done = command("--hidden", 8, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["model"] == "untrained, 8 units"
    assert told["rows"][1]["name"].startswith("ours: subspace of ")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--rule", "whole"], "--rule"),
        (["--sessions", 0], "--sessions"),
        (["--rounds", 0], "--rounds"),
        (["--hidden", 8], "--hidden"),
    ],
)
def test_wrong_usage_is_named(bench, options, name):
    """Exit code 2 and the option's name; an untrained model stands for no other."""
    done = bench(*options)
    assert done.exit_code == 2
    assert name in done.stderr

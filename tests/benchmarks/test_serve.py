"""`python -m benchmarks.serve` on a model of no size."""

import json
import os

import pytest
from click.testing import CliRunner

from benchmarks.serve import serve

QUICK = ["--bytes", 24, "--seconds", 0, "--threads", 1, "--rule", "output_bias"]


@pytest.fixture
def bench(tiny_checkpoint):
    """Types the command."""
    return lambda *words: CliRunner().invoke(serve, [str(word) for word in (tiny_checkpoint, *QUICK, *words)])


def test_json_has_both_ways_and_what_a_session_takes(bench):
    """A row for each number of sessions and way, under which conditions."""
    counts = ["--sessions", 1, "--sessions", 3, "--resident", 3]
    done = bench(*counts, "--experts", 4, "--rows", 32, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    conditions = told["conditions"]
    assert (conditions["bytes"], conditions["rows"], conditions["threads"]) == (24, 32, 1)
    assert (conditions["adaptation"]["kind"], conditions["adaptation"]["experts"]) == ("output_bias", 4)
    rows = told["rows"]
    ways = [(row["sessions"], row["way"]) for row in rows]
    assert ways == [(1, "engine"), (1, "http"), (3, "engine"), (3, "http")]
    for engine, http in (rows[:2], rows[2:]):
        assert engine["of_engine"] is None
        assert http["of_engine"] == pytest.approx(http["tokens_per_second"] / engine["tokens_per_second"])
    assert all(row["round_mean"] > 0 and 0 < row["rows_a_round"] <= 32 for row in rows)
    assert told["resident"]["sessions"] == 3


def test_a_table_for_people(bench):
    """A line a way; --no-http leaves the engine's."""
    done = bench("--sessions", 2, "--no-http", "--no-static", "--experts", 1)
    assert done.exit_code == 0, done.output
    title, header, line = done.stdout.splitlines()
    assert title.startswith("tiny, output_bias of 256, experts: 1; appends of 24 bytes")
    assert header.split()[:2] == ["sessions,", "through"]
    assert line.split()[:2] == ["2", "engine"]


def test_more_than_the_machine_can_hold_is_refused(bench, monkeypatch):
    """Before anything is measured, with how much it would take."""
    monkeypatch.setattr(os, "sysconf", lambda name: 2**10)
    done = bench("--sessions", 100_000)
    assert done.exit_code == 2
    assert "--sessions" in done.stderr

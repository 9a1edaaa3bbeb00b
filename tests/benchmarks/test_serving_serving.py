"""Figures of many sessions, from what was measured."""

import random

import pytest

from benchmarks.serving.load import Append, Measured, Plan, Rounds
from benchmarks.serving.measure import Conditions, Figures, quantile, through_engine
from rlstm_server.engine.worker import SHORT
from rlstm_server.schemas.text import AdaptationRequest

PLAN = Plan(sessions=2, text_bytes=10, seconds=1.0)


def measured(took, short, each=()):
    """Appends of 10 tokens each in a second, and 4 rounds of half a second and 3 rows."""
    return Measured(
        seconds=1.0,
        appends=[Append(0.0, seconds, 10) for seconds in took],
        short=[Append(0.0, seconds, 5) for seconds in short],
        rounds=Rounds(4, 12, 2.0, each),
    )


def test_figures_are_of_what_was_measured():
    """The short appends' tokens do not count, and their wait is told in mean rounds."""
    found = Figures.of(measured([0.1, 0.2, 0.4], [1.0, 1.5], each=(0.2, 0.8)), PLAN, "engine")
    assert (found.tokens_per_second, found.appends, found.shorts) == (30.0, 3, 2)
    assert (found.append_p50, found.append_p99) == (0.2, 0.4)
    assert (found.round_mean, found.round_p99, found.rows_a_round) == (0.5, 0.8, 3.0)
    assert found.round_apart == 0.25
    assert (found.short_p99, found.short_rounds) == (1.5, 3.0)
    assert found.of_engine is None


def test_a_share_is_of_the_engines_throughput():
    """Half as many appends in the same time are a half."""
    engine = Figures.of(measured([0.1, 0.1], [0.1]), PLAN, "engine")
    http = Figures.of(measured([0.1], [0.1]), PLAN, "http")
    assert http.beside(engine).of_engine == 0.5
    assert http.round_p99 is None


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 1_000])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_is_not_exceeded_by_its_share(count, share):
    """The least such value."""
    values = random.Random(count).sample(range(10 * count), count)
    found = quantile(values, share)
    assert sum(value <= found for value in values) >= share * count
    assert sum(value < found for value in values) < share * count


def test_the_engine_is_measured_in_this_process(served):
    """Its rounds are counted one by one, with the rows of all sessions that were in them."""
    asked = AdaptationRequest(kind="output_bias", experts=2)
    under = Conditions(asked=asked, scores="totals", rows=64, threads=2, queued_jobs=64, cache_bytes=2**20)
    plan = Plan(sessions=3, text_bytes=24, seconds=0.2)
    found = through_engine(served, under, plan)
    assert found.tokens_per_second > 0
    assert found.appends >= 3
    assert found.shorts >= 1
    assert 2 <= found.rows_a_round <= 2 * (3 + 1) * (1 + SHORT)
    assert found.round_p99 is not None
    assert 0 < found.round_mean < found.append_p50 <= found.append_p99

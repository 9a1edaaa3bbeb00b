"""Peers: who is measured, with how many threads, and what the three ratios are of."""

import pytest
import torch

from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_training.bench import gpt2, peers, works
from rlstm_training.bench.in_turn import Measured, Rate
from rlstm_training.bench.speed import multiply_adds
from rlstm_training.bench.untrained import untrained

SESSIONS, CONTEXT = 24, 4


@pytest.fixture(scope="module")
def calibrated():
    return untrained(8, torch.device("cpu"))


@pytest.fixture
def found(calibrated, monkeypatch):
    """The cases for so many threads, as where there is no GPT-2."""
    monkeypatch.setattr(works, "SGEMM_SIZE", 8)
    monkeypatch.setattr(gpt2, "LIBRARY", "a_library_that_is_not_there")

    def call(threads, thread_pool=None):
        under = peers.Conditions(
            sessions=SESSIONS, context=CONTEXT, threads=threads, device=torch.device("cpu")
        )
        return peers.peers(calibrated, calibrated.choose(), bos_id=10, under=under, thread_pool=thread_pool)

    return call


def test_each_does_what_it_says(found, calibrated):
    """All tokens of all sessions, once a call; names are each once."""
    cases, segment = found(1), calibrated.default.segment
    names = [case.name for case in cases]
    assert len(set(names)) == len(names) == 8
    tokens = [8**3, *3 * [SESSIONS * segment], segment, segment, *2 * [SESSIONS * segment]]
    assert [case.work() for case in cases] == tokens


def test_ours_have_a_crew_and_nobody_is_held_back(found, shared_out):
    """Others may use one thread or all; ours split no product, and the yardstick is on all threads."""
    with ThreadPool(3) as thread_pool:
        cases = found(3, thread_pool)
        for case in cases:
            shared_out.clear()
            case.work()
            assert shared_out == ([3] if case.thread_pool > 1 else [])
    shared, alone, freely = ((1,), 3), ((1,), 1), ((1, 3), 1)
    threads = [(case.threads, case.thread_pool) for case in cases]
    assert threads == [((3,), 1), *3 * [shared], alone, freely, shared, freely]
    assert all((case.threads, case.thread_pool) == alone for case in found(1))


def test_operations_are_counted_by_row(found, calibrated):
    """A static row reads, a learning one reads and goes back; four experts are three and the static row."""
    forward = multiply_adds(calibrated.model)
    _, one, two, four, ours, eager, static, lstm = found(1)
    assert [case.operations for case in (one, two, four)] == [2 * forward, 3 * forward, 7 * forward]
    assert [case.rows for case in (one, two, four)] == [1, 2, 4]
    assert [case.operations for case in (ours, eager, static)] == [3 * forward, 3 * forward, forward]
    assert 0.5 * forward < lstm.operations < 2 * forward


def test_the_three_ratios(found):
    """Learning beside one session at a time and beside static; static beside the matrix product."""
    cases = found(1)
    rates = dict(zip((case.name for case in cases), (1e9, 60.0, 1.0, 1.0, 7.0, 2.0, 240.0, 9.0), strict=True))
    measured = Measured(cases=cases, rounds=[{name: Rate(rate, 1) for name, rate in rates.items()}])
    static = 240.0 * cases[6].operations / 1e9
    expected = {"learning/peer": 30.0, "learning/static": 0.25, "static/sgemm": static}
    assert peers.ratios(measured) == pytest.approx(expected)


def test_gpt2_is_of_equal_size_where_it_can_be_built(found, calibrated, monkeypatch):
    """And may use one thread or all, as the others."""
    built = torch.nn.Linear(2, 2)
    monkeypatch.setattr(gpt2, "is_installed", lambda: True)
    monkeypatch.setattr(
        gpt2,
        "shape_of_size",
        lambda *_, **__: gpt2.Shape(vocabulary=256, width=16, layers=2, heads=2, context=CONTEXT),
    )
    monkeypatch.setattr(gpt2, "build", lambda shape: built)
    *_, case = found(2)
    assert case.name == f"GPT-2, {SESSIONS} rows of {CONTEXT} tokens"
    assert (case.weights, case.threads) == (6, (1, 2))
    assert case.operations == 2 * 12 * 16 * 16 + 256 * 16


def test_full_weights_without_a_rule_learn_by_the_defaults_figures(calibrated):
    """Speed depends on no rate, and a subspace's axes are no part of it."""
    only = type(calibrated)(
        model=calibrated.model, statistics=calibrated.statistics, choices=calibrated.choices[:1]
    )
    full = peers._full(only).config
    assert (full.kind, full.num_fast_weights, full.rank) == (
        "full",
        calibrated.model.config.num_parameters,
        0,
    )
    assert full.segment == only.default.segment

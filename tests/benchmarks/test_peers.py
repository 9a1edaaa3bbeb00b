"""Cases and peers: what is measured is really done, on how many threads, and what the ratios are of."""

import json

import pytest
import torch

from benchmarks import cases as cases_module
from benchmarks import peers as module
from benchmarks.cases import (
    Measured,
    Rate,
    multiply_adds,
)
from benchmarks.eager import EagerSession
from benchmarks.peers import Conditions, main, peers, ratios
from benchmarks.rows import rows
from rlstm_model.adaptation.evaluator import DynamicEvaluator

BOS, SEGMENT, CPU = 10, 6, torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A matrix product of no size, and no GPT-2."""
    monkeypatch.setattr(cases_module, "SGEMM_SIZE", 8)
    monkeypatch.setattr(module, "gpt2", lambda config, context: None)


@pytest.fixture
def found(subject):
    """The cases for so many threads."""

    def call(threads):
        under = Conditions(sessions=24, context=4, threads=threads, device=CPU)
        return peers(subject, subject.calibrated.choose(), under)

    return call


def test_each_does_what_it_says(found, subject):
    """All tokens of all sessions, once a call, counted by row: a learning one reads and goes back.

    Others may use one thread or all; ours and the yardstick have all.
    """
    cases, forward = found(2), multiply_adds(subject.parameters.config)
    assert len({case.name for case in cases}) == len(cases) == 8
    assert [case.work() for case in cases] == [8**3, *4 * [24 * SEGMENT], SEGMENT, SEGMENT, 24 * SEGMENT]
    assert [case.rows for case in cases[1:4]] == [1, 2, 4]
    assert [case.operations / forward for case in cases[1:7]] == [2, 3, 7, 1, 3, 3]
    assert [case.threads for case in cases] == [*5 * [(2,)], (1, 2), (2,), (1, 2)]


def test_ratios_are_taken_within_a_round(found):
    """A machine ten times slower in two of three rounds changes speeds and no ratio."""
    cases = found(1)
    speeds = (1e9, 60.0, 1.0, 1.0, 240.0, 2.0, 7.0, 480.0)
    fast = dict(zip((case.name for case in cases), speeds, strict=True))
    rounds = [{name: Rate(value / by, 1) for name, value in fast.items()} for by in (1, 10, 10)]
    measured = Measured(cases=cases, rounds=rounds)
    static = 240.0 * cases[4].operations / 1e9
    expected = {"learning/peer": 30.0, "learning/static": 0.25, "static/sgemm": static}
    assert ratios(measured) == pytest.approx(expected)
    told = measured.figures()
    assert [told[place]["ours"] for place in (4, 7)] == pytest.approx([1.0, 0.5])
    assert (told[1]["slowest"], told[1]["tokens_per_second"], told[1]["fastest"]) == (6.0, 6.0, 60.0)


def test_an_eager_session_learns_what_ours_learns(subject, network):
    """After a segment its weights are the slow ones plus the fast ones, decay and all."""
    full = subject.full_rule()
    assert full.config in subject.calibrated.choices
    ids = torch.tensor([BOS, *b"the sea"])
    evaluator = DynamicEvaluator.of(subject.parameters, full, bos_id=BOS)
    (observed,) = evaluator.observe(evaluator.start(static=False), ids[1 : SEGMENT + 1].tolist())
    once, twice = (EagerSession(network, full, ids[: SEGMENT + 1]) for _ in range(2))
    assert once() == twice() == twice() == SEGMENT
    own, other, slow = (
        torch.cat([weight.detach().flatten() for weight in each.parameters()])
        for each in (once.model, twice.model, network)
    )
    delta = torch.from_numpy(observed.state.delta_KP[0])
    torch.testing.assert_close(own - slow, delta, atol=1e-6, rtol=1e-3)
    assert not torch.equal(own, other)


def test_the_command(checkpoint, type_command):
    """Every peer by name, how fast, on which threads; an untrained model needs no checkpoint."""
    quick = ["--sessions", 2, "--rounds", 1, "--seconds", 0, "--threads", 2]
    done = type_command(main, checkpoint, *quick, "--rule", "subspace", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [row["threads"] for row in told["rows"][:5]] == [2] * 5
    assert all(row["tokens_per_second"] > 0 and row["of_sgemm"] > 0 for row in told["rows"])
    assert told["ratios"]["learning/peer"] == pytest.approx(told["rows"][5]["ours"])
    shown = type_command(main, *quick, "--hidden", 8)
    assert "eager autograd: full weights, one session at a time" in shown.stdout
    assert "static/sgemm" in shown.stdout


@pytest.mark.parametrize("backend", [[], ["--torch"]])
def test_rows_of_either_backend(checkpoint, type_command, backend):
    """Frozen texts and sessions, so many at once, on the CPU's backend and a rehearsal of the GPU's."""
    quick = ["--count", 1, "--count", 3, "--rounds", 1, "--seconds", 0, "--threads", 1]
    done = type_command(rows, checkpoint, *quick, *backend, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["rows"]
    each = ["frozen", *(f"sessions, experts: {experts}" for experts in (1, 2, 4))]
    assert [row["name"] for row in told[1:]] == [f"{count} {what}" for count in (1, 3) for what in each]
    assert all(row["tokens_per_second"] > 0 for row in told)

"""Peers: what is measured is really done, on how many threads, and what the ratios are of."""

import json
import time

import pytest
import torch
from rlstm_model.adaptation.thread_pool import ThreadPool

from benchmarks import peers as module
from benchmarks.models import TorchLSTM, lstm_of_equal_size
from benchmarks.peers import (
    Case,
    Conditions,
    EagerSession,
    Measured,
    Rate,
    lstm_scoring,
    main,
    measure,
    one_session,
    peers,
    ratios,
    scoring,
    sessions,
)
from benchmarks.rows import learning, rows_cases
from benchmarks.train import multiply_adds
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import FrozenWeights

BOS, SEGMENT, CPU = 10, 6, torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A matrix product of no size, and no GPT-2."""
    monkeypatch.setattr(module, "SGEMM_SIZE", 8)
    monkeypatch.setattr(module, "gpt2", lambda config, context: None)


@pytest.fixture
def found(calibrated):
    """The cases for so many threads."""

    def call(threads, thread_pool=None):
        under = Conditions(sessions=24, context=4, threads=threads, device=CPU)
        return peers(calibrated, calibrated.choose(), bos_id=BOS, under=under, thread_pool=thread_pool)

    return call


def test_each_does_what_it_says(found, calibrated):
    """All tokens of all sessions, once a call, counted by row: a learning one reads and goes back."""
    cases, forward = found(1), multiply_adds(calibrated.model)
    assert len({case.name for case in cases}) == len(cases) == 8
    tokens = [8**3, *3 * [24 * SEGMENT], SEGMENT, SEGMENT, *2 * [24 * SEGMENT]]
    assert [case.work() for case in cases] == tokens
    assert [case.rows for case in cases[1:4]] == [1, 2, 4]
    assert [case.operations / forward for case in cases[1:7]] == [2, 3, 7, 3, 3, 1]


def test_ours_have_a_pool_and_nobody_is_held_back(found):
    """Others may use one thread or all; ours split no product, and the yardstick is on all threads."""
    with ThreadPool(3) as thread_pool:
        cases = found(3, thread_pool)
        assert cases[1].work() == cases[6].work() == 24 * SEGMENT
    shared, alone, freely = ((1,), 3), ((1,), 1), ((1, 3), 1)
    threads = [(case.threads, case.thread_pool) for case in cases]
    assert threads == [((3,), 1), *3 * [shared], alone, freely, shared, freely]


def test_ratios_are_taken_within_a_round(found):
    """A machine ten times slower in two of three rounds changes speeds and no ratio."""
    cases = found(1)
    fast = dict(
        zip((case.name for case in cases), (1e9, 60.0, 1.0, 1.0, 7.0, 2.0, 240.0, 480.0), strict=True)
    )
    rounds = [{name: Rate(value / by, 1) for name, value in fast.items()} for by in (1, 10, 10)]
    measured = Measured(cases=cases, rounds=rounds)
    static = 240.0 * cases[6].operations / 1e9
    expected = {"learning/peer": 30.0, "learning/static": 0.25, "static/sgemm": static}
    assert ratios(measured) == pytest.approx(expected)
    told = measured.figures()
    assert [row["ours"] for row in told[-2:]] == pytest.approx([1.0, 0.5])
    assert (told[1]["slowest"], told[1]["tokens_per_second"], told[1]["fastest"]) == (6.0, 6.0, 60.0)


def test_the_fastest_number_of_threads_counts(monkeypatch):
    """Of those over which torch is to split its products; afterwards there are as many as before."""
    speeds, clocks = {1: 5.0, 2: 9.0, 3: 7.0}, []

    def rate(work, seconds, clock, device):
        clocks.append(clock)
        return speeds[torch.get_num_threads()]

    monkeypatch.setattr(module, "rate", rate)
    before, case = torch.get_num_threads(), {"task": "learning", "work": lambda: 1, "operations": 1}
    cases = [Case(name="ours", thread_pool=4, **case), Case(name="eager", threads=(1, 2, 3), **case)]
    measured = measure(cases, rounds=2, seconds=0, device=CPU)
    assert measured.rounds == [{"ours": Rate(5.0, 4), "eager": Rate(9.0, 2)}] * 2
    assert torch.get_num_threads() == before
    measure([Case(name="alone", **case)], rounds=1, seconds=0, device=CPU)
    # One thread's time is the processor's, which other work counts less to.
    assert (clocks[0], clocks[-1]) == (time.perf_counter, time.process_time)


def test_an_eager_session_learns_what_ours_learns(calibrated):
    """After a segment its weights are the slow ones plus the fast ones, decay and all."""
    model, full = calibrated.model, calibrated.choose("full")
    ids = torch.tensor([BOS, *b"the sea"])
    eager, evaluator = (
        EagerSession(model, full, ids[: SEGMENT + 1]),
        DynamicEvaluator(model, full, bos_id=BOS),
    )
    for _ in range(2):
        eager()
    for observed in evaluator.observe(evaluator.start(static=False), ids[1 : SEGMENT + 1].tolist()):
        state = observed.state
    once = EagerSession(model, full, ids[: SEGMENT + 1])
    assert once() == SEGMENT
    own, twice = (
        torch.cat([weight.detach().flatten() for weight in each.model.parameters()]) for each in (once, eager)
    )
    slow = torch.cat([weight.flatten() for weight in model.parameters()])
    torch.testing.assert_close(own - slow, state.delta_KP[0], atol=1e-6, rtol=1e-3)
    assert not torch.equal(own, twice)


def test_sessions_have_learned_before_and_go_on(calibrated, monkeypatch):
    """A row an expert, of which one is frozen; one session alone begins where its last segment ended."""
    asked, seen, observe = [], [], DynamicEvaluator.observe
    monkeypatch.setattr(
        module, "read_together", lambda evaluator, streams, thread_pool: asked.extend(streams)
    )
    for experts in (1, 2, 4):
        asked.clear()
        work = sessions(calibrated.model, calibrated.choose(), bos_id=BOS, count=3, experts=experts)
        assert work() == 3 * SEGMENT
        assert len({tuple(stream.passage.ids) for stream in asked}) == 3
        assert all(bool(stream.state.delta_KP.any(1).all()) for stream in asked)
        assert {stream.state.expert_config.rows for stream in asked} == {experts}
    monkeypatch.setattr(
        DynamicEvaluator, "observe", lambda self, state, ids: seen.append(state) or observe(self, state, ids)
    )
    alone = one_session(calibrated.model, calibrated.choose(), bos_id=BOS)
    assert [alone(), alone()] == [SEGMENT, SEGMENT]
    assert [state.position for state in seen] == [0, SEGMENT]


def test_scoring_scores_every_token(calibrated, monkeypatch):
    """Ours, and torch.nn.LSTM's: distributions over the vocabulary for all rows, which sum to 1."""
    scored, score = [], module._score
    monkeypatch.setattr(
        module, "_score", lambda logits, targets: scored.append(logits) or score(logits, targets)
    )
    lstm = TorchLSTM(lstm_of_equal_size(calibrated.model.config)).requires_grad_(False)
    for work in (scoring(FrozenWeights(calibrated.model), SEGMENT, 5), lstm_scoring(lstm, SEGMENT, 5)):
        assert [work(), work()] == [5 * SEGMENT] * 2
    assert all(logits.shape == (SEGMENT, 5, 256) for logits in scored)
    assert not torch.equal(scored[0], scored[1])


def test_rows_are_measured_in_every_way(calibrated):
    """In the plain way, which every device has; learning takes a step from what the last one left."""
    cases = rows_cases(calibrated.model, calibrated.choose(), bos_id=BOS, rows=(1, 2))
    names = [
        f"{task}, {count} rows, plain" for count in (1, 2) for task in ("static", "learning", "batch step")
    ]
    assert [case.name for case in cases] == ["matrix product", *names]
    assert all(case.work() > 0 for case in cases[1:])
    evaluator = DynamicEvaluator(calibrated.model, calibrated.choose("full"), bos_id=BOS)
    fast, given = evaluator.fast_weights, []
    learn = fast.learn
    object.__setattr__(fast, "learn", lambda *args: given.append(args[0].clone()) or learn(*args))
    work = learning(evaluator, 2)
    assert [work(), work()] == [2 * SEGMENT] * 2
    assert not given[0].any()
    assert given[1].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_command(checkpoint, type_command, threads):
    """Every peer by name, how fast, on which threads; an untrained model needs no checkpoint."""
    quick = ["--sessions", 2, "--rounds", 1, "--seconds", 0, "--threads", threads]
    done = type_command(main, checkpoint, *quick, "--rule", "subspace", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [row["threads"] for row in told["rows"][:5]] == [threads] * 4 + [1]
    assert all(row["tokens_per_second"] > 0 and row["of_sgemm"] > 0 for row in told["rows"])
    assert told["ratios"]["learning/peer"] == pytest.approx(told["rows"][5]["ours"])
    shown = type_command(main, *quick, "--hidden", 8)
    assert "eager autograd: full weights, one session at a time" in shown.stdout
    assert "static/sgemm" in shown.stdout

"""What the benchmarks' figures are of: ratios within a round, shares, quantiles, models of equal size."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.adapt import SINGLES, Outcome, mean, mixed, mixture_methods, share
from benchmarks.cases import Measured, Rate, multiply_adds
from benchmarks.eager import EagerSession
from benchmarks.models import TorchLSTM, gpt2_shape, lstm_of_equal_size
from benchmarks.native import MAX, MIN, Finding
from benchmarks.peers import Conditions, peers, ratios
from benchmarks.rescore import CANDIDATES, n_best_lists
from benchmarks.serving import load
from benchmarks.serving.measure import Figures, quantile
from benchmarks.start import Followed
from benchmarks.train import TORCH, Case, Workload, cases, row
from benchmarks.watch import KINDS, USUAL, Found
from rlstm_client.cli.wer import errors_of
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.config import ModelConfig

BOS, SEGMENT, CPU = 10, 6, torch.device("cpu")
SHAPE = {"vocab_size": 11, "hidden_size": 8, "num_layers": 2, "mogrifier_rounds": 3, "mogrifier_rank": 2}


def test_ratios_are_taken_within_a_round_before_the_median(subject):
    """A machine ten times slower in one round changes the speeds of that round and no ratio."""
    fast = {"": 12_000.0, "RLSTM": 90.0, "LSTM": 100.0, TORCH: 150.0}
    slow = {name: rate / 10 for name, rate in fast.items()}
    case = Case(name="RLSTM", beside="LSTM", parameters=10, flops_per_token=60, turn=lambda: None)
    told = row(case, [fast, slow, slow])
    assert (told.tokens_per_second, told.slowest, told.fastest) == (9.0, 9.0, 90.0)
    assert (told.sgemm, told.our_lstm, told.torch_lstm) == pytest.approx((0.45, 0.9, 0.6))

    found = peers(
        subject, subject.calibrated.choose(), Conditions(sessions=24, context=4, threads=1, device=CPU)
    )
    speeds = dict(zip((each.name for each in found), (1e9, 60, 1, 1, 240, 2, 7, 480), strict=True))
    rounds = [{name: Rate(speed / by, 1) for name, speed in speeds.items()} for by in (1, 10, 10)]
    static = 240.0 * found[4].operations / 1e9
    expected = {"learning/peer": 30.0, "learning/static": 0.25, "static/sgemm": static}
    assert ratios(Measured(cases=found, rounds=rounds)) == pytest.approx(expected)


def test_operations_are_those_of_weights_in_products():
    """Matrices of layers, rounds and softmax, once for each softmax; nothing else."""
    rounds, softmax = 3 * 2 * 8 * 2, 11 * 8
    for cell, matrices in (("rlstm", 7), ("lstm", 8)):
        assert multiply_adds(ModelConfig(**SHAPE, cell=cell)) == 2 * (matrices * 64 + rounds) + softmax
    mixed_softmax = ModelConfig(**SHAPE, softmax_components=3, tie_embeddings=True)
    assert multiply_adds(mixed_softmax) == 2 * (7 * 64 + rounds) + 3 * (softmax + 8 * 8 + 8)


@pytest.mark.parametrize("rounds", [0, 4])
def test_all_models_have_about_as_many_weights(rounds):
    """The RLSTM with rounds sets the budget; torch's second bias may exceed it."""
    found = cases(Workload(hidden=40, rank=4, rounds=rounds, batch=2, window=3), CPU)
    assert all(case.beside in {*(each.name for each in found), ""} for case in found)
    assert all(0.95 * found[0].parameters < case.parameters < 1.02 * found[0].parameters for case in found)


def test_others_are_as_wide_as_they_can_be():
    """Torch's LSTM without more weights than the other model, its second biases apart; GPT-2 by its count."""
    config = ModelConfig(vocab_size=5000, hidden_size=100, mogrifier_rounds=4, tie_embeddings=True)
    shape = lstm_of_equal_size(config)
    fits, exceeds = (
        sum(weight.numel() for weight in TorchLSTM(replace(shape, hidden_size=size)).parameters())
        for size in (shape.hidden_size, shape.hidden_size + 1)
    )
    assert fits - 4 * shape.hidden_size * shape.num_layers <= config.num_parameters < exceeds
    assert gpt2_shape(124_439_808, vocabulary=50_257, context=1024) == (768, 12, 12)
    assert gpt2_shape(10_000, vocabulary=33_278, context=64) is None


def test_an_eager_session_learns_what_ours_learns(subject, network):
    """After a segment its weights are the slow ones plus the fast ones, decay and all."""
    full, ids = subject.full_rule(), torch.tensor([BOS, *b"the sea"])
    evaluator = DynamicEvaluator.of(subject.parameters, full, bos_id=BOS)
    (observed,) = evaluator.observe(evaluator.start(static=False), ids[1 : SEGMENT + 1].tolist())
    session = EagerSession(network, full, ids[: SEGMENT + 1])
    assert session() == SEGMENT
    own, slow = (
        torch.cat([weight.detach().flatten() for weight in each.parameters()])
        for each in (session.model, network)
    )
    torch.testing.assert_close(own - slow, torch.from_numpy(observed.state.delta_KP[0]), atol=1e-6, rtol=1e-3)


def test_shares_and_means_lack_nothing():
    """Of 4 bits full saves 2: 3 saves half, 1 one and a half, 5 loses; no gain or number, no share."""
    assert [share(4.0, 2.0, own) for own in (3.0, 1.0, 2.0, 5.0)] == [0.5, 1.5, 1.0, -0.5]
    for frozen, full, own in ((1.0, 1.0, 0.5), (1.0, 2.0, 0.5), (math.nan, 1.0, 0.5), (2.0, 1.0, math.nan)):
        assert share(frozen, full, own) is None
    assert (mean([0.5, 1.0, 1.5]), mean([0.5, None]), mean([])) == (1.0, None, None)


def test_a_mixture_is_held_against_the_best_single_rate(subject):
    """Nine, the calibrated one among them, and the frozen model; the excess is relative."""
    assert len(set(SINGLES)) == 9
    assert 1.0 in SINGLES
    rule = subject.calibrated.default
    costs = dict(zip(mixture_methods(rule), [1.8, *(2.0 + k for k in range(9))], strict=True))
    outcomes = {
        method: Outcome(method=method, bytes=1, bits={"a": cost, "b": cost + 1, "c": math.nan}, guards=0)
        for method, cost in costs.items()
    }
    a, b, c = mixed(rule, {"a": 9.0, "b": 2.5, "c": math.nan}, outcomes)
    assert (a["mixture"], a["best"], a["best_scale"]) == (1.8, 2.0, SINGLES[0])
    assert (a["excess"], b["excess"]) == pytest.approx((-0.1, 0.12))
    assert (b["best"], b["best_scale"]) == (2.5, 0.0)
    assert (c["mixture"], c["best"], c["excess"], c["best_scale"]) == (None,) * 4


def test_a_finding_is_met_on_its_side_of_the_target():
    """At least, or at most."""
    figures = {"name": "a", "value": 2.0, "absolute": {}}
    met = [Finding(bound=bound, target=t, **figures).met for bound in (MIN, MAX) for t in (1.0, 2.0, 3.0)]
    assert met == [True, True, False, False, True, True]


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([9.0, 9.0, 0.1, 0.2, 0.1, 0.2, 0.1, 0.4], (0.15, 0.4, False)),
        ([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 4.0], (2.0, 4.0, True)),
    ],
)
def test_a_log_is_followed_or_is_not(lags, expected):
    """The start does not count; who is ever later falls behind."""
    assert Followed.of(lags) == pytest.approx(expected)


def test_figures_of_a_server_are_of_what_was_measured():
    """Short appends' tokens do not count, their wait is told in mean rounds; shares are of the engine's."""

    def figures(way, took):
        measured = load.Measured(
            seconds=1.0,
            appends=[load.Append(0.0, seconds, 10) for seconds in took],
            short=[load.Append(0.0, seconds, 5) for seconds in (1.0, 1.5)],
            rounds=load.Rounds(4, 12, 2.0, (0.2, 0.8)),
        )
        return Figures.of(measured, load.Plan(sessions=2, text_bytes=10, seconds=1.0), way)

    engine = figures("engine", [0.1, 0.2, 0.4])
    assert (engine.tokens_per_second, engine.appends, engine.shorts) == (30.0, 3, 2)
    assert (engine.append_p50, engine.append_p99, engine.short_p99, engine.short_rounds) == (
        0.2,
        0.4,
        1.5,
        3.0,
    )
    assert (engine.round_mean, engine.round_p99, engine.rows_a_round, engine.round_apart) == (
        0.5,
        0.8,
        3.0,
        0.25,
    )
    assert (engine.of_engine, figures("http", [0.1] * 2).beside(engine).of_engine) == (None, 2 / 3)
    assert [quantile([3.0, 1.0, 2.0, 4.0], each) for each in (0.5, 0.75, 0.99)] == [2.0, 3.0, 4.0]


def test_alarms_are_counted_by_kind_after_the_warm_up():
    """Lines are numbered from 1; those of the warm-up count nowhere."""
    lines = [("a", USUAL)] * 50 + [("b", KINDS[0]), ("a", USUAL), ("c", KINDS[0])]
    found = Found.of(lines, {3, 51, 52})
    both = Found.together([found, found])
    assert (found.lines[USUAL], found.alarms[USUAL], found.share(KINDS[1])) == (1, 1, 0)
    assert (both.lines[KINDS[0]], both.alarms[KINDS[0]], both.share(KINDS[0])) == (4, 2, 0.5)


def test_n_best_lists_are_made_by_rule():
    """Different texts in capitals, the same each time; words are replaced, never lost."""
    pytest.importorskip("jiwer", reason="it comes with the extra rescore")
    said = ["the king spoke to ignosi of the mountain road", "we said nothing then"]
    lexicon = ["kind", "sing", "ignorance", "mountains", "load", "toad", "nothings", "spike", "then"]
    lists = [*n_best_lists(said, lexicon)]
    assert lists == [*n_best_lists(said, lexicon)]
    for one, sentence in zip(lists, said, strict=True):
        texts = [candidate["text"] for candidate in one["candidates"]]
        assert 1 < len(set(texts)) == len(texts) <= CANDIDATES
        assert one["reference"] == sentence.upper()
        assert all(len(text.split()) == len(sentence.split()) for text in texts)
        assert any(wrong for wrong, _ in errors_of(texts, one["reference"]))

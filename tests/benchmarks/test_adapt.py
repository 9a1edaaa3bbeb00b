"""What learning saves: figures are those of a session alone, and shares are of full fast weights."""

import json
import math

import pytest
import torch

from benchmarks import adapt as module
from benchmarks.adapt import SINGLES, Method, Reader, adapt, mean, mixed, mixture_methods, share
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Stream, evaluator_of, read_adapting, static_loss

BOS = 10


@pytest.fixture
def passages():
    texts = {"long": b"the sea was calm and cold", "short": b"the ship sailed."}
    return [Passage(name=name, ids=list(raw), bytes=len(raw)) for name, raw in texts.items()]


def test_each_number_is_that_of_its_session_alone(subject, network, passages):
    """All texts are read together, and none changes another."""
    reader = Reader(subject=subject, passages=passages, device=torch.device("cpu"))
    for rule in subject.calibrated.choices:
        methods = [Method(rule=rule, experts=k) for k in (1, 2, 4)] + [Method(rule=rule, rate_scale=30.0)]
        evaluator = evaluator_of(network, subject.calibrated.choose(rule.kind), bos_id=BOS)
        for method, outcome in reader.learning(methods).items():
            more = {"static": method.experts > 1, "experts": method.experts}
            for passage in passages:
                start = evaluator.start(rate_scale=method.rate_scale, **more)
                ((alone,),) = read_adapting(evaluator, [Stream([passage], start)])
                bits = alone.bits_per_byte(alone.adapted_nats)
                assert outcome.bits[passage.name] == pytest.approx(bits, abs=1e-6)
    frozen = reader.frozen()
    for passage in passages:
        told = static_loss(network, passage, bos_id=BOS)
        assert frozen[passage.name] == pytest.approx(told.bits_per_byte(told.static_nats), abs=1e-6)


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
        method: module.Outcome(
            method=method, bytes=1, bits={"a": cost, "b": cost + 1, "c": math.nan}, guards=0
        )
        for method, cost in costs.items()
    }
    a, b, c = mixed(rule, {"a": 9.0, "b": 2.5, "c": math.nan}, outcomes)
    assert (a["mixture"], a["best"], a["best_scale"]) == (1.8, 2.0, SINGLES[0])
    assert (a["excess"], b["excess"]) == pytest.approx((-0.1, 0.12))
    assert (b["best"], b["best_scale"]) == (2.5, 0.0)
    assert (c["mixture"], c["best"], c["excess"], c["best_scale"]) == (None,) * 4


@pytest.fixture
def figures(checkpoint, own_folder, type_command):
    """Types the command for one text and gives its JSON."""

    def call(*words):
        quick = ["--corpus", own_folder, "--prefix", 3, "--threads", 1]
        done = type_command(adapt, checkpoint, *quick, *words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return call


def test_the_command(figures, checkpoint, own_folder, type_command, tmp_path):
    """All rules but full's, which is the yardstick; a later run takes its figures, of the same text alone."""
    told = figures("--mixture")
    rows = [(row["rule"]["kind"], row["experts"]) for row in told["rows"]]
    assert rows == [(kind, k) for kind in ("subspace", "output_bias") for k in (1, 2, 4)]
    assert [rate["rate_scale"] for rate in told["full"]["rates"]] == [1 / 3, 1.0, 3.0]
    (name,) = told["static"]
    full = min(rate["bits_per_byte"][name] for rate in told["full"]["rates"])
    for row in told["rows"]:
        expected = share(told["static"][name], full, row["bits_per_byte"][name])
        assert row["share"] == {name: expected, "streams": None, "all": expected}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(told))
    assert figures("--mixture", "--full-from", earlier) == told
    words = ["--corpus", own_folder, "--prefix", 2, "--threads", 1]
    other = type_command(adapt, checkpoint, *words, "--full-from", earlier)
    assert "another model, calibration or text" in " ".join(other.stderr.replace("│", " ").split())
    shown = type_command(adapt, checkpoint, *words, "--rule", "subspace", "--experts", 1, "--mixture")
    assert "share of full's gain" in shown.stdout
    assert "of 0 streams" in shown.stdout

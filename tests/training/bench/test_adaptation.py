"""What texts cost by each rule: the numbers of one session alone, whatever else is read beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_training.bench import adaptation
from rlstm_training.bench.adaptation import Bench, Method, idle_rule, read_each
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import DynamicReading, Stream, static_loss
from rlstm_training.evaluation.measurements import Form, Measurements, Setting, Statistics

BOS = 10
SETTING = Setting(rate=3e-3, segment=10)
FORMS = (Form(kind="subspace", num_fast_weights=400), Form(kind="full"), Form(kind="output_bias"))


@pytest.fixture(scope="module")
def calibrated(random_model, words):
    """Three kinds of fast weights of one small model."""
    text = np.frombuffer(words(300, 1), dtype=np.uint8)
    statistics = Statistics(heads=3, segments=6, rank=6)
    measurements = Measurements(random_model(), [(text, 1)], bos_id=BOS, statistics=statistics)
    return CalibrationSet(
        model=measurements.model,
        statistics=measurements.of(SETTING.segment),
        choices=tuple(measurements.config(SETTING, form) for form in FORMS),
    )


@pytest.fixture(scope="module")
def passages(words):
    texts = {"long": words(25, 2), "short": words(9, 3)}
    return [Passage(name=name, ids=list(raw), bytes=len(raw)) for name, raw in texts.items()]


@pytest.fixture
def bench(calibrated, passages):
    return Bench(calibrated, passages, bos_id=BOS)


def _alone(calibrated, method, passage):
    """Its bits per byte as `rlstm evaluate --dynamic` would give them."""
    rule = calibrated.choose(method.rule.kind)
    evaluator = DynamicEvaluator(calibrated.model, rule, bos_id=BOS)
    state = evaluator.start(rate_scale=method.rate_scale, experts=method.experts, static=method.experts > 1)
    nats = 0.0
    for observed in evaluator.observe(state, passage.ids):
        nats -= observed.scores.total
    return nats / math.log(2) / passage.bytes


@pytest.mark.parametrize("place", range(3))
def test_each_number_is_that_of_its_session_alone(bench, calibrated, passages, place):
    """All experts, rates and texts are read together, and none changes another."""
    rule = calibrated.choices[place]
    methods = [Method(rule=rule, experts=k) for k in (1, 2, 4)] + [Method(rule=rule, rate_scale=30.0)]
    outcomes = list(bench.learning(methods))
    assert [outcome.method for outcome in outcomes] == methods
    for outcome in outcomes:
        for passage in passages:
            alone = _alone(calibrated, outcome.method, passage)
            assert outcome.bits[passage.name] == pytest.approx(alone, abs=1e-6)
    assert len({outcome.bits["long"] for outcome in outcomes}) == len(outcomes)


def test_one_expert_is_dynamic_evaluation(bench, calibrated, passages):
    """The very number that evaluation reports."""
    (outcome,) = bench.learning([Method(rule=calibrated.choices[1])])
    evaluator = DynamicEvaluator(calibrated.model, calibrated.choose("full"), bos_id=BOS)
    for passage in passages:
        told = DynamicReading(evaluator).read(passage)
        assert outcome.bits[passage.name] == told.bits_per_byte(told.adapted_nats)


def test_static_is_the_model_as_loaded(bench, calibrated, passages):
    """Also where the model's default is a rule whose rows share nothing."""
    reordered = replace(calibrated, choices=calibrated.choices[1:])
    for bits in (bench.static(), Bench(reordered, passages, bos_id=BOS).static()):
        for passage in passages:
            told = static_loss(calibrated.model, passage, bos_id=BOS)
            assert bits[passage.name] == pytest.approx(told.bits_per_byte(told.static_nats), abs=1e-6)


def test_nothing_is_learned_by_the_idle_rule(calibrated, passages):
    """Its sessions end without fast weights."""
    evaluator = DynamicEvaluator(calibrated.model, idle_rule(calibrated), bos_id=BOS)
    *_, last = evaluator.observe(evaluator.start(), passages[0].ids)
    assert last.state.delta_KP is None


@pytest.mark.parametrize(("place", "one"), [(0, 2 * 400), (1, None), (2, 4 * 256)])
def test_bytes_are_those_of_all_experts(bench, calibrated, place, one):
    """One learns where there are one or two, three of four do; a subspace is kept in half precision."""
    rule = calibrated.choices[place]
    one = one or 4 * calibrated.model.config.num_parameters
    outcomes = bench.learning([Method(rule=rule, experts=k) for k in (1, 2, 4)])
    assert [outcome.bytes for outcome in outcomes] == [one, one, 3 * one]


def test_memory_limits_what_is_read_at_once_and_no_number(bench, calibrated, monkeypatch):
    """In batches of one or two methods the numbers are the same, and progress counts each token once."""
    methods = [Method(rule=calibrated.choices[0], experts=k) for k in (1, 2, 4)]
    whole = list(bench.learning(methods))
    for limit, batches in ((0, 3), (2 * 400 * 2, 2)):
        monkeypatch.setattr(adaptation, "_WEIGHTS_AT_ONCE", limit)
        assert len(list(adaptation._batches(methods, 2 * 400))) == batches
        done = []
        for outcome, known in zip(bench.learning(methods, done.append), whole, strict=True):
            assert (outcome.method, outcome.bytes) == (known.method, known.bytes)
            assert outcome.bits == pytest.approx(known.bits, abs=1e-6)
        assert sum(done) == len(methods) * bench.tokens
    assert list(bench.learning([])) == []


@pytest.mark.usefixtures("one_thread")
def test_a_crew_changes_no_number(bench, calibrated, passages, shared_out):
    """Static reading and learning, several experts and all kinds."""
    methods = [[Method(rule=rule, experts=k) for k in (1, 4)] for rule in calibrated.choices]
    with ThreadPool(2) as thread_pool:
        shared = Bench(calibrated, passages, bos_id=BOS, thread_pool=thread_pool)
        assert shared.static() == bench.static()
        assert shared_out
        for each in methods:
            shared_out.clear()
            assert list(shared.learning(each)) == list(bench.learning(each))
            assert shared_out


def test_a_state_that_cannot_be_used_costs_no_number(calibrated, passages):
    """NaN in one session's state is that session's alone."""
    evaluator = DynamicEvaluator(calibrated.model, calibrated.choose("subspace"), bos_id=BOS)
    good = [Stream(passage, evaluator.start()) for passage in passages]
    start = evaluator.start()
    broken = start.now._replace(state=type(start.now.state)(start.now.state.h * torch.nan, start.now.state.c))
    bad = Stream(passages[0], replace(start, now=broken, start=broken))
    first, lost, second = read_each(evaluator, [good[0], bad, good[1]])
    assert math.isnan(lost.adapted_nats)
    for found, known in zip((first, second), read_each(evaluator, good), strict=True):
        assert found.adapted_nats == pytest.approx(known.adapted_nats, rel=1e-6)

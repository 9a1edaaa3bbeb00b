from dataclasses import replace
from itertools import count

import pytest
import torch

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.bench.showcase import (
    STATISTICS,
    Deadline,
    Material,
    _calibrate,
    _read,
    compare,
    recipe_for_minutes,
    torch_lstm,
)
from rlstm_training.config import Averaging
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import DynamicReading, striped_loss
from rlstm_training.evaluation.measurements import Measurements, Setting
from rlstm_training.trainer import Trainer

CPU = torch.device("cpu")


def _ticking(tick=1.0):
    """A clock on which a second passes between two looks at it."""
    ticks = count()
    return lambda: tick * next(ticks)


@pytest.fixture
def material(toy_texts, words):
    valid, test = (words(40, seed) for seed in (5, 6))
    return Material(
        texts=toy_texts,
        bos_id=10,
        valid=Passage(name="valid", ids=list(valid)[:100], bytes=100),
        test=Passage(name="test", ids=list(test), bytes=len(test)),
    )


@pytest.fixture
def recipe(toy_recipe):
    recipe = toy_recipe(
        averaging=Averaging(kind="two_tailed", patience=2), learning_rate=3e-2, validation_tokens=100
    )
    return recipe_for_minutes(recipe, CPU, 0.5)


def test_a_deadline_comes_when_its_seconds_are_over():
    """Its parts are on the same clock."""
    deadline = Deadline(3.0, _ticking())
    assert deadline.left == 2.0
    part = deadline.after(1.5)
    assert not part.passed
    assert part.passed
    assert deadline.passed
    assert deadline.left == 0.0


def test_what_minutes_change_of_a_recipe(toy_recipe):
    """Dropout, the schedule, and how much is looked at; the GPU's products."""
    recipe = toy_recipe(validation_tokens=50_000)
    changed = recipe_for_minutes(recipe, torch.device("cuda"), 0.5)
    assert changed.dropout == DropoutRates(input=0.05, cell=0.05, state=0.05, output=0.05)
    assert [changed.rate(step) for step in (0, 10**6)] == [1e-2, 1e-2]
    assert changed.validation_tokens == 10_000
    assert (recipe.precision, changed.precision) == ("float32", "bfloat16")


def test_both_are_trained_and_evaluated_alike(recipe, material):
    """As many weights, the same seconds of a clock; both learn their text, and are read with learning too."""
    lines = []
    reached = compare(recipe, material, CPU, Deadline(500, _ticking()), lines.append)
    ours, torchs = reached
    assert (ours.model, torchs.model) == ("RLSTM", "torch.nn.LSTM")
    assert torchs.weights == pytest.approx(ours.weights, rel=0.02)
    assert torchs.steps == pytest.approx(ours.steps, abs=2)
    assert 100 < ours.steps < 170
    for each in reached:
        assert each.tokens_per_second > 0
        assert each.valid_perplexity < 30
        assert each.test_perplexity < 30
        assert each.static_perplexity < 30
        assert each.adapted_perplexity != each.static_perplexity
        assert each.adapted_perplexity == pytest.approx(each.static_perplexity, rel=0.1)
        assert each.read_tokens <= len(material.test.ids)
    heard = [line.partition(":")[0] for line in lines]
    assert heard == sorted(heard)
    assert min(heard.count(name) for name in ("RLSTM", "torch.nn.LSTM")) >= 8


def test_there_is_a_result_however_little_time(recipe, material):
    """At least a step, a rate and a segment."""
    for each in compare(recipe, material, CPU, Deadline(0.0, _ticking()), lambda line: None):
        assert each.steps == 1
        assert each.read_tokens == 20
        assert each.rate > 0


def test_the_reported_weights_are_evaluated(recipe, material, monkeypatch):
    """An average, where that is reported; perplexities are those of the library's readings."""
    looks, whole = [], Trainer.evaluate

    def evaluate(self):
        found, bits = whole(self)
        looks.append((self, found))
        return replace(found, reported="long"), bits

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    monkeypatch.setattr("rlstm_training.bench.showcase.torch_lstm", lambda *args: Trainer(*args))
    *_, last = compare(recipe, material, CPU, Deadline(10, _ticking()), lambda line: None)
    trainer, found = looks[-1]
    for weight, mean in zip(trainer.parameters, trainer.average.long(), strict=True):
        assert torch.equal(weight, mean)
    ids = torch.tensor(material.test.ids).numpy()
    assert last.test_perplexity == pytest.approx(
        torch.tensor(striped_loss(trainer.model, ids, stripes=32)).exp().item()
    )
    assert last.averaged == found.length


def test_the_rate_is_of_those_tried_and_dynamic_is_the_library_s(recipe, material):
    """Reading the test text to its end is dynamic evaluation of it at the chosen rate."""
    trainer = torch_lstm(recipe, material.texts, CPU)
    calibration = _calibrate(trainer, material, Deadline(10**9, _ticking()))
    static, adapted, tokens = _read(trainer.model, calibration, material, Deadline(10**9, _ticking()))
    assert tokens == len(material.test.ids)
    again = Measurements(trainer.model, material.texts.train, bos_id=10, statistics=STATISTICS)
    config = calibration.config
    setting = Setting(rate=config.rate, segment=config.segment)
    expected = DynamicReading(DynamicEvaluator(trainer.model, again.under(setting), bos_id=10)).read(
        material.test
    )
    assert static == pytest.approx(expected.static_nats, rel=1e-5)
    assert adapted == pytest.approx(expected.adapted_nats, rel=1e-5)


@pytest.mark.gpu
def test_it_runs_on_a_gpu(recipe, material):
    """In bfloat16, and with cuDNN's LSTM, in forward, backward and dynamic evaluation."""
    cuda = torch.device("cuda")
    for each in compare(
        recipe_for_minutes(recipe, cuda, 1.0), material, cuda, Deadline(20.0), lambda line: None
    ):
        assert each.valid_perplexity < 30
        assert each.static_perplexity < 30
        assert each.adapted_perplexity == pytest.approx(each.static_perplexity, rel=0.2)

import math
from dataclasses import replace

import numpy as np
import pytest

from rlstm_model.adaptation.adapter import Adapter
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.calibrate import Grid, Trial, best, search, session_losses
from rlstm_training.evaluation.evaluation import dynamic_loss
from rlstm_training.evaluation.measurements import FULL, Form, Measurements, Setting, Statistics

GRID = Grid(rates=(1.0, 2.0, 4.0, 8.0), decays=(0.0, 0.1), epsilons=(0.1, 1.0), segments=(10, 5, 20))


def _valley(lowest):
    """A loss with one lowest place on the grid, by text."""

    def loss(setting):
        depth = abs(math.log2(setting.rate / lowest.rate)) + abs(setting.decay - lowest.decay)
        depth += abs(math.log2(setting.segment / lowest.segment)) / 2
        depth += abs(math.log10(setting.epsilon / lowest.epsilon)) / 4
        return {"a": 1 + depth, "b": 3 + depth}

    return loss


def _one_by_one(loss):
    return lambda settings: [loss(setting) for setting in settings]


def _setting(rate, decay=0.0, epsilon=0.1, segment=10):
    return Setting(rate=rate, decay=decay, epsilon=epsilon, segment=segment)


@pytest.mark.parametrize(
    "lowest",
    [
        _setting(1.0),
        _setting(8.0),
        _setting(2.0, decay=0.1),
        _setting(4.0, segment=20),
        _setting(2.0, segment=5, epsilon=1.0),
        _setting(8.0, segment=20, epsilon=1.0, decay=0.1),
    ],
)
def test_the_search_finds_the_lowest_place(lowest):
    """Wherever the valley lies, at an edge or at the second value of everything, its bottom is chosen."""
    trials = list(search(_one_by_one(_valley(lowest)), GRID))
    assert best(trials).setting == lowest
    assert len(trials) <= GRID.most_trials


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_another_segment_wants_another_rate(factor):
    """Rates are followed up or down from the best one, as far as they get better and no further."""

    def loss(setting):
        lowest = 2.0 if setting.segment == 10 else min(8.0, max(1.0, 2.0 * factor))
        return {"a": abs(math.log2(setting.rate / lowest)) - (setting.segment == 20)}

    grid = replace(GRID, decays=(0.0,), epsilons=(0.1,), segments=(10, 20))
    trials = list(search(_one_by_one(loss), grid))
    assert best(trials).setting == _setting(min(8.0, max(1.0, 2.0 * factor)), segment=20)
    assert len({trial.setting for trial in trials}) == len(trials)


def test_decay_is_tried_at_the_next_rate_too():
    """Decay may want a higher rate than no decay."""

    def loss(setting):
        if (setting.rate, setting.decay) == (4.0, 0.1):
            return {"a": 0.5}
        return {"a": _valley(_setting(2.0))(setting)["a"]}

    assert (
        best(list(search(_one_by_one(loss), replace(GRID, rates=(4.0, 1.0, 2.0, 8.0))))).setting.rate == 4.0
    )


def test_every_text_counts_the_same():
    """The objective is the mean over texts, so none of them decides alone."""
    trial = Trial(setting=_setting(1), bits_per_byte={"a": 1.0, "b": 2.0, "c": 6.0})
    assert trial.mean == 3.0


def test_the_gentlest_of_equals_and_never_a_nan():
    """Ties go to the smaller rate; a rate that broke the model cannot win."""
    trials = [Trial(setting=_setting(rate), bits_per_byte={"a": 2.0}) for rate in (4, 2, 8)]
    broken = Trial(setting=_setting(1), bits_per_byte={"a": float("nan")})
    assert best([broken, *trials]).setting.rate == 2


@pytest.mark.parametrize(("kind", "least", "most"), [("words", 5, 20), ("bytes", 20, 50)])
def test_the_usual_grid_has_the_published_segments(kind, least, most):
    """Words 5 to 20 tokens a segment, characters and bytes 20 to 50."""
    grid = Grid.usual(kind)
    assert (min(grid.segments), max(grid.segments)) == (least, most)
    assert all(epsilon > 0 for epsilon in grid.epsilons)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model()


@pytest.fixture(scope="module")
def sources(words):
    return [(np.frombuffer(words(200, 1), dtype=np.uint8), 1)]


@pytest.fixture
def measurements(model, sources):
    return Measurements(model, sources, bos_id=10, statistics=Statistics(heads=3, segments=4, rank=2))


FORMS = (FULL, Form(kind="subspace", coordinates=90), Form(kind="output_bias"))


@pytest.mark.parametrize("temperature", [1.0, 0.9])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
def test_pitfall_31_losses_are_those_of_new_sessions(model, measurements, words, form, temperature):
    """Each text and each trial begins with the loaded weights, whatever was tried before or beside it."""
    passages = [Passage(name=str(seed), ids=list(words(12, seed)), bytes=60) for seed in (2, 3)]
    done: list[int] = []
    losses = session_losses(measurements, passages, form=form, temperature=temperature, advance=done.append)
    losses([_setting(5e-2, segment=6)])
    setting = _setting(2e-3, decay=1e-3, segment=6)
    _, tried = losses([replace(setting, rate=1e-3), setting])
    for passage in passages:
        calibration = measurements.under(setting, form)
        adapter = Adapter(model, calibration, bos_id=10, temperature=temperature)
        expected = dynamic_loss(adapter, passage)
        found = tried[passage.name]
        assert found == pytest.approx(expected.bits_per_byte(expected.adapted_nats), abs=1e-6)
        assert found != pytest.approx(expected.bits_per_byte(expected.static_nats), abs=1e-4)
    assert sum(done) == 3 * sum(len(passage.ids) for passage in passages)


@pytest.mark.parametrize("tokens", ["words", "bytes"])
@pytest.mark.parametrize("kind", ["subspace", "sparse", "output_bias"])
def test_fewer_fast_weights_are_tried_with_larger_rates(tokens, kind):
    """Over the same segments."""
    full, grid = Grid.usual(tokens), Grid.usual(tokens, kind)
    assert min(grid.rates) > min(full.rates)
    assert max(grid.rates) > max(full.rates)
    assert grid.segments == full.segments

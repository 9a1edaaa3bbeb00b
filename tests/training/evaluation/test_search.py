import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.evaluation.measurements import Setting
from rlstm_training.evaluation.search import Grid, Trial, Trials, search

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


def _search(loss, grid, static=None):
    """All trials; the texts are near and far from what the model knows."""
    *_, trials = search(_one_by_one(loss), grid, static or {"a": 9.0, "b": 99.0})
    return trials


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
    trials = _search(_valley(lowest), GRID)
    assert trials.best.setting == lowest
    assert len(trials.tried) <= GRID.most_trials


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_another_segment_wants_another_rate(factor):
    """Rates are followed up or down from the best one, as far as they get better and no further."""

    def loss(setting):
        lowest = 2.0 if setting.segment == 10 else min(8.0, max(1.0, 2.0 * factor))
        return {"a": abs(math.log2(setting.rate / lowest)) - (setting.segment == 20)}

    grid = replace(GRID, decays=(0.0,), epsilons=(0.1,), segments=(10, 20))
    trials = _search(loss, grid, {"a": 9.0})
    assert trials.best.setting == _setting(min(8.0, max(1.0, 2.0 * factor)), segment=20)
    assert len({trial.setting for trial in trials.tried}) == len(trials.tried)


def test_decay_is_tried_at_the_next_rate_too():
    """Decay may want a higher rate than no decay."""

    def loss(setting):
        if (setting.rate, setting.decay) == (4.0, 0.1):
            return {"a": 0.5}
        return {"a": _valley(_setting(2.0))(setting)["a"]}

    trials = _search(loss, replace(GRID, rates=(4.0, 1.0, 2.0, 8.0)), {"a": 9.0})
    assert trials.best.setting.rate == 4.0


def _trials(static, *by_rate):
    """Trials with rates 1, 2 and so on, of texts a, b and so on."""
    tried = [
        Trial(setting=_setting(float(rate)), bits_per_byte=dict(zip("abc", bits, strict=False)))
        for rate, bits in enumerate(by_rate, 1)
    ]
    return Trials(static=dict(zip("abc", static, strict=False)), tried=tuple(tried))


# Exact in binary, so that equal differences are equal numbers.
BITS = st.integers(1, 512).map(lambda n: n / 64)


@given(st.data(), st.integers(1, 3), st.integers(1, 6))
def test_regret_is_the_part_of_the_possible_gain_that_is_missed(data, texts, count):
    """By the formula, written out: the mean over texts of what is missed over what may be gained."""
    static = data.draw(st.lists(BITS, min_size=texts, max_size=texts))
    bits = data.draw(st.lists(st.lists(BITS, min_size=texts, max_size=texts), min_size=count, max_size=count))
    trials = _trials(static, *bits)
    found = [trials.regret(trial.bits_per_byte) for trial in trials.tried]
    bits_TX, static_X = np.array(bits), np.array(static)
    gain_X = np.maximum(static_X - bits_TX.min(0), 0.01 * static_X)
    np.testing.assert_allclose(found, ((bits_TX - bits_TX.min(0)) / gain_X).mean(1), rtol=1e-12, atol=1e-12)


def test_the_gentlest_of_equals_and_never_a_nan():
    """Ties go to the smaller rate; a rate that broke the model on any text cannot win, nor be the least."""
    nan, inf = math.nan, math.inf
    trials = _trials((3.0, 3.0), (nan, 1.0), (2.0, inf), (2.0, 2.0), (2.0, 2.0), (2.0, -inf))
    assert trials.best.setting.rate == 3.0
    assert [trials.regret(trial.bits_per_byte) for trial in trials.tried] == [inf, inf, 0.25, 0.25, inf]
    shuffled = replace(trials, tried=trials.tried[::-1])
    assert shuffled.best.setting.rate == 3.0
    assert _trials((3.0,), (nan,), (inf,)).best.setting.rate == 1.0


def test_the_usual_grids():
    """Words 5 to 20 tokens a segment, others 20 to 50; fewer fast weights want larger rates."""
    for tokens, ends in (("words", (5, 20)), ("bytes", (20, 50))):
        full = Grid.usual(tokens)
        assert (min(full.segments), max(full.segments)) == ends
        for kind in ("subspace", "output_bias"):
            grid = Grid.usual(tokens, kind)
            assert min(grid.rates) > min(full.rates)
            assert max(grid.rates) > max(full.rates)
            assert grid.segments == full.segments
            few = kind == "output_bias" or replace(grid, segments=grid.segments[:1]).most_trials <= 14
            assert few

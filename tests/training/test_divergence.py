"""The arithmetic of the divergence guard."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.loop import Progress

LOSSES = st.lists(st.floats(0.0, 9.0), max_size=20)


@given(losses=LOSSES)
def test_the_best_is_the_first_of_the_least(losses):
    """Step and loss of the first evaluation that no later one undercuts, and how many came after it."""
    progress = Progress()
    for step, loss in enumerate(losses, 1):
        progress = progress.after(step, loss)
    if not losses:
        assert progress == Progress()
        return
    first = losses.index(min(losses))
    assert (progress.best_step, progress.best_loss) == (first + 1, losses[first])
    assert progress.since == len(losses) - 1 - first


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_a_divergence(loss):
    """Even as the first evaluation of a run."""
    assert Progress().diverged(loss, 0.5)


def test_worse_by_more_than_the_margin_is_a_divergence():
    """The margin itself is not; before the first evaluation there is nothing to be worse than."""
    progress = Progress().after(10, 2.0)
    assert not progress.diverged(2.5, 0.5)
    assert progress.diverged(2.5001, 0.5)
    assert not Progress().diverged(1e6, 0.5)


@given(resets=st.integers(0, 12))
def test_each_reset_slows_down_once_more(resets):
    """0.9, 0.81, ...: and the best stays what it was, with new patience."""
    progress = Progress().after(10, 2.0).after(20, 3.0)
    for _ in range(resets):
        progress = progress.gone_back()
    assert progress.rate_scale == pytest.approx(math.prod([0.9] * resets))
    assert (progress.best_step, progress.best_loss) == (10, 2.0)
    assert progress.since == (0 if resets else 1)
    assert progress.after(30, 1.0).rate_scale == progress.rate_scale
    assert progress.after(30, 4.0).rate_scale == progress.rate_scale


@given(losses=LOSSES, resets=st.integers(0, 3))
def test_json_brings_back_the_same_progress(losses, resets):
    """Also before the first evaluation, whose best loss is infinite; what was told cannot change it."""
    progress = Progress(resets=resets)
    for step, loss in enumerate(losses, 1):
        progress = progress.after(step, loss)
    told = asdict(progress)
    assert Progress(**json.loads(json.dumps(told))) == progress

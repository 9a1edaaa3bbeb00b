"""The guard over a single expert: resets, freezes, and what a text can cost at most."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.adaptation.loss_guard import FREEZE, LIMIT, LossGuard

NATS = st.floats(min_value=-40.0, max_value=40.0)


def segment(guard, nats):
    """A segment of one token that costs so much more than the static row."""
    return guard.after([-nats], [0.0], ends=True)


def test_an_expert_that_stays_ahead_is_left_alone():
    """Gains are not saved up: what counts is the loss since it was last ahead."""
    guard = LossGuard()
    for _ in range(100):
        guard, lost, frozen = segment(guard, -5.0)
        assert (guard, lost, frozen) == (LossGuard(), False, False)
    assert not segment(guard, LIMIT).lost
    assert segment(guard, LIMIT + 0.1).lost


def test_losses_add_up_over_segments():
    """Each below the limit, together above it."""
    guard, lost, _ = segment(LossGuard(), 0.75 * LIMIT)
    assert not lost
    assert segment(guard, 0.75 * LIMIT).lost


def test_after_a_reset_it_is_frozen_for_twice_as_long_each_time():
    """A text that cannot be learned from is soon hardly ever tried."""
    guard, lengths = LossGuard(), []
    for _ in range(4):
        guard, lost, _ = segment(guard, LIMIT + 1)
        assert lost
        lengths.append(0)
        while guard.frozen:
            guard, lost, frozen = segment(guard, 0.0)
            assert (lost, frozen) == (False, True)
            lengths[-1] += 1
    assert lengths == [FREEZE, 2 * FREEZE, 4 * FREEZE, 8 * FREEZE]


def test_columns_of_different_lengths_are_refused():
    """Something was lost on the way."""
    with pytest.raises(ValueError, match=r"shorter|longer"):
        LossGuard().after([-1.0], [], ends=True)


@given(st.lists(st.tuples(NATS, NATS), min_size=1, max_size=12), st.data())
def test_a_segment_may_be_cut_anywhere(tokens, data):
    """In pieces, the guard is the same to the last bit."""
    own, static = [list(column) for column in zip(*tokens, strict=True)]
    cut = data.draw(st.integers(0, len(tokens)))
    guard = LossGuard(excess=3.0)
    whole = guard.after(own, static, ends=True)
    part = guard.after(own[:cut], static[:cut], ends=False).guard
    assert part.after(own[cut:], static[cut:], ends=True) == whole


@given(st.lists(NATS, min_size=1, max_size=400), st.booleans())
def test_the_whole_loss_is_bounded(costs, hostile):
    """At most n (LIMIT + w) + LIMIT nats, with n <= log2(T / FREEZE + 1) + 1 resets, whatever the text."""
    costs = [abs(cost) for cost in costs] * 5 if hostile else costs
    guard, total, resets = LossGuard(), 0.0, 0
    for number, cost in enumerate(costs, start=1):
        cost = 0.0 if guard.frozen else cost  # frozen, it is the static model
        total += cost
        guard, lost, _ = segment(guard, cost)
        resets += lost
        assert resets <= math.log2(number / FREEZE + 1) + 1
        assert total <= resets * (LIMIT + max(0.0, *costs)) + LIMIT + 1e-9

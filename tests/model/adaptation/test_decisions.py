"""What guards decided once is done again, whatever the numbers would say now."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.adaptation.evaluator import Decisions, NonFiniteState

NAN, INF = float("nan"), float("inf")


def learned(evaluator, text, observe, *, experts=4):
    """A stream after two segments, with fast weights."""
    return observe(evaluator, text(8), evaluator.start(experts=experts))[1]


def done(evaluator, state, ids, decided=None):
    """What one part gives, among others that decide for themselves."""
    part = evaluator.chunk(state, ids, decided=decided)
    own, _ = run_batch([part, evaluator.chunk(evaluator.start(experts=4), ids)])
    if isinstance(own, Exception):
        raise own
    return own


def poisoned(state, row):
    """A stream of which one expert that learns computes no number."""
    delta_KP = state.delta_KP.clone()
    delta_KP[row] = NAN
    return replace(state, delta_KP=delta_KP)


@pytest.mark.parametrize("rule", [{}, {"max_norm_ratio": 1e-4}, {"rate": 1e30, "max_norm_ratio": 1e38}])
@pytest.mark.parametrize("experts", [1, 2, 4])
def test_followed_decisions_give_the_same_bits(make_evaluator, text, observe, digest, rule, experts):
    """Done again with what was decided, a part gives the same state, guards and decisions."""
    evaluator = make_evaluator(**rule)
    state = learned(evaluator, text, observe, experts=experts)
    for number in range(4):
        first = done(evaluator, state, text(4, seed=number))
        again = done(evaluator, state, text(4, seed=number), first.decisions)
        assert digest(*again.state.tensors().values()) == digest(*first.state.tensors().values())
        assert again.state.header() == first.state.header()
        assert (again.guards, again.decisions) == (first.guards, first.decisions)
        state = first.state


def test_a_calm_part_decides_nothing(make_evaluator, text, observe):
    """What is written down of it is nothing at all."""
    evaluator = make_evaluator()
    assert done(evaluator, learned(evaluator, text, observe), text(4)).decisions == Decisions()


@pytest.mark.parametrize("length", [1, 4])
def test_a_row_that_restarted_restarts(make_evaluator, text, observe, digest, length):
    """The broken row is named; a stream whose row is whole restarts it all the same, to the same state."""
    evaluator, ids = make_evaluator(), text(length)
    state = learned(evaluator, text, observe)
    broken = done(evaluator, poisoned(state, 1), ids)
    assert broken.decisions.restarted == (False, True, False)
    followed = done(evaluator, state, ids, broken.decisions)
    assert followed.guards == broken.guards
    assert digest(*followed.state.tensors().values()) == digest(*broken.state.tensors().values())


def test_a_row_that_was_whole_must_be_whole(make_evaluator, text, observe):
    """Nothing says how to go on where a row computes no number that did before."""
    evaluator = make_evaluator()
    state = poisoned(learned(evaluator, text, observe), 0)
    for decided in (Decisions(), Decisions(restarted=(False, True, False))):
        with pytest.raises(NonFiniteState, match="where it did before"):
            done(evaluator, state, text(4), decided)


def test_a_skipped_step_is_skipped_and_counted(make_evaluator, text, observe):
    """The row keeps its fast weights; the third in a row loses them, as it did."""
    evaluator = make_evaluator()
    state = learned(evaluator, text, observe)
    skipped = Decisions(skipped=(True, False, False))
    once = done(evaluator, state, text(4), skipped).state
    assert torch.equal(once.delta_KP[0], state.delta_KP[0])
    assert not torch.equal(once.delta_KP[1], state.delta_KP[1])
    twice = done(evaluator, once, text(4), skipped).state
    last = done(evaluator, twice, text(4), skipped)
    assert (once.bad_steps, twice.bad_steps, last.state.bad_steps) == ((1, 0, 0), (2, 0, 0), (0, 0, 0))
    assert last.guards == ("step_skipped", "restarted")
    assert not last.state.delta_KP[0].any()


def test_a_step_that_was_taken_is_taken(make_evaluator, text, observe, bad_gradients):
    """Though its gradient is no number here: the state shows it, and is refused where it is stored."""
    evaluator = make_evaluator()
    state = learned(evaluator, text, observe)
    bad_gradients({0}, row=0)
    assert done(evaluator, state, text(4), Decisions()).state.delta_KP[0].isnan().any()


def test_fast_weights_are_cut_back_by_the_factor_of_then(make_evaluator, text, observe):
    """And not at all where they were not."""
    evaluator, tight = make_evaluator(), make_evaluator(max_norm_ratio=1e-3)
    state = learned(evaluator, text, observe)
    free = done(evaluator, state, text(4)).state.delta_KP
    scaled = done(evaluator, state, text(4), Decisions(scales=(0.5, 1.0, 0.25))).state.delta_KP
    torch.testing.assert_close(scaled, free * torch.tensor([[0.5], [1.0], [0.25]]))
    assert torch.equal(done(tight, state, text(4), Decisions()).state.delta_KP, free)


@pytest.mark.parametrize(
    "wrong",
    [
        Decisions(skipped=(True,)),
        Decisions(restarted=(True, False)),
        Decisions(scales=(1.0, 1.0, 1.0, 1.0)),
        Decisions(scales=(1.0, -0.1, 1.0)),
        Decisions(scales=(1.0, NAN, 1.0)),
        Decisions(scales=(1.0, INF, 1.0)),
    ],
    ids=str,
)
def test_decisions_of_another_stream_are_refused(make_evaluator, text, observe, wrong):
    """Over other rows, or by a factor that cuts nothing back."""
    evaluator = make_evaluator()
    with pytest.raises(ValueError, match=r"decisions|factor"):
        done(evaluator, learned(evaluator, text, observe), text(4), wrong)

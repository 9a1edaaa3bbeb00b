"""The recurrent state as a value."""

import pytest
import torch

from rlstm_model.network.state import State


@pytest.fixture
def state():
    h, c = torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    return State(h, c)


def test_zeros_has_the_dtype_it_is_told():
    """The state before any text is zero, in the model's precision."""
    zeros = State.zeros(2, 4, 3, torch.ones((), dtype=torch.float64))
    assert zeros.h.shape == zeros.c.shape == (2, 4, 3)
    assert zeros.h.dtype == torch.float64
    assert not zeros.h.any()
    assert zeros.batch == 4


def test_detach_keeps_values_and_cuts_history(state):
    """Truncated back-propagation ends where a state is detached."""
    grown = State(state.h.requires_grad_() * 1, state.c * state.h)
    cut = grown.detach()
    assert torch.equal(cut.h, grown.h)
    assert not cut.h.requires_grad
    assert not cut.c.requires_grad


def test_rows_chooses_the_same_rows_of_h_and_c(state):
    """By index tensor or slice, in the order asked for."""
    chosen = state.rows(torch.tensor([3, 1]))
    assert torch.equal(chosen.h, state.h[:, [3, 1]])
    assert torch.equal(chosen.c, state.c[:, [3, 1]])
    assert torch.equal(state.rows(slice(1, 2)).c, state.c[:, 1:2])


def test_expand_repeats_one_row(state):
    """Many continuations may start from one state."""
    many = state.rows(slice(0, 1)).expand(5)
    assert many.batch == 5
    assert all(torch.equal(many.c[:, row], state.c[:, 0]) for row in range(5))


def test_where_resets_whole_rows(state):
    """A dropped row loses h and c of every layer; the others keep every bit."""
    kept = state.where(torch.tensor([True, False, True, True]))
    assert not kept.h[:, 1].any()
    assert not kept.c[:, 1].any()
    assert torch.equal(kept.rows(slice(2, 4)).h, state.h[:, 2:])

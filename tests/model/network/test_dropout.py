"""Dropout rates and masks."""

import pytest
import torch

from rlstm_model.network.dropout import DropoutRates, sample_masks

LIKE = torch.zeros((), dtype=torch.float64)


def _sample(rates, *, seed=0, time=50, batch=40, layers=2, hidden=30):
    return sample_masks(
        rates,
        time=time,
        batch=batch,
        layers=layers,
        hidden=hidden,
        like=LIKE,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("kind", ["input", "cell", "state", "output"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_a_mask_is_0_or_scaled_up_with_mean_1(kind, rate):
    """Inverted dropout: kept units are divided by the chance to be kept."""
    mask = getattr(_sample(DropoutRates(**{kind: rate})), kind)
    kept = 1 / (1 - rate)
    assert mask.unique().tolist() == pytest.approx([0.0, kept])
    assert mask.mean().item() == pytest.approx(1.0, abs=5 * kept / mask.numel() ** 0.5)
    assert mask.dtype == LIKE.dtype


def test_a_rate_of_0_draws_no_mask():
    """None stands for keeping every unit."""
    assert _sample(DropoutRates()) == (None, None, None, None)
    assert not DropoutRates().any
    assert DropoutRates(state=0.1).any


def test_pitfall_5_the_state_mask_has_no_time_and_differs_by_layer_and_row():
    """One mask for the whole window, its own for every layer and batch row."""
    state = _sample(DropoutRates(state=0.5)).state
    assert state.shape == (2, 40, 30)
    assert not torch.equal(state[0], state[1])
    assert not torch.equal(state[0, 0], state[0, 1])


def test_pitfall_6_the_other_masks_are_fresh_at_every_step():
    """Input, cell and output masks have a time axis, along which they differ."""
    masks = _sample(DropoutRates(input=0.5, cell=0.5, output=0.5))
    assert masks.cell.shape == (2, 50, 40, 30)
    for mask in (masks.input, masks.cell[0], masks.output):
        assert mask.shape == (50, 40, 30)
        assert not torch.equal(mask[0], mask[1])


def test_a_window_has_masks_of_its_own_and_a_seed_repeats_them():
    """Another draw gives other masks; the same generator state gives the same."""
    rates = DropoutRates(input=0.5, state=0.5)
    first, again, other = _sample(rates), _sample(rates), _sample(rates, seed=1)
    assert torch.equal(first.state, again.state)
    assert not torch.equal(first.state, other.state)
    assert not torch.equal(first.input, other.input)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_0_to_1_is_named(rate):
    """A rate of 1 would divide by zero."""
    with pytest.raises(ValueError, match=r"dropout\.cell"):
        DropoutRates(cell=rate)

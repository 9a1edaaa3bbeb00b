"""Numbers go to a device and come back as they are; that nobody waits shows on a GPU."""

import math

import torch

from rlstm_model.torch_backend.transfer import fetch, needed, send


def test_numbers_are_sent_as_they_are():
    """Nested or not, in the dtype that was asked for."""
    assert torch.equal(
        send([[1, 2], [3, 4]], torch.int64, torch.device("cpu")), torch.tensor([[1, 2], [3, 4]])
    )
    assert send([0.1], torch.float32, torch.device("cpu")).dtype == torch.float32


def test_figures_come_back_as_they_are():
    """Of any dtype, also those that are no numbers; flags as 0 and 1."""
    norms = torch.tensor([0.1, math.inf, math.nan])
    found, flags = fetch(norms, torch.tensor([True, False, True]))
    assert found[:2] == norms.tolist()[:2]
    assert math.isnan(found[2])
    assert flags == [1, 0, 1]


def test_what_no_flag_asks_for_is_not_needed():
    """On a CPU, where it takes no wait to know."""
    assert not needed(torch.tensor([False, False]))
    assert needed(torch.tensor([False, True]))

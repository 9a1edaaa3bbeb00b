"""What a recording promises, of the one that any device can make."""

import torch

from rlstm_model.adaptation.capture import run_again


def test_a_replay_computes_from_what_is_in_the_buffers_now():
    """In the place where the results were: whoever holds them sees the new ones."""
    x, y = torch.ones(3), torch.ones(3)
    recorded = run_again(lambda: (x + y, x * y))
    total, product = recorded.results
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    y.fill_(5.0)
    recorded.replay()
    assert torch.equal(total, torch.tensor([6.0, 7.0, 8.0]))
    assert torch.equal(product, torch.tensor([5.0, 10.0, 15.0]))
    assert all(map(torch.equal, recorded.results, (total, product)))

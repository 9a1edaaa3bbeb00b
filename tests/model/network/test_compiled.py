"""torch.compile: what it can take, and what it must leave alone, with the same numbers."""

import os
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"),
    pytest.mark.filterwarnings("default"),
]

LAYERS = [{"cell": "rlstm"}, {"cell": "lstm", "cap_input_gate": False}]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _text(model, time=7, batch=3):
    return torch.randint(model.config.vocab_size, (time, batch), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_compiled_training_gives_the_losses_of_eager_training(random_model, shape):
    """Five steps of gradient descent with everything around the layers compiled: to 1e-5 in float32."""
    losses = []
    for compiled in (False, True):
        model = random_model(dtype=torch.float32, mogrifier_rank=2, **shape)
        ids_TB, descent = _text(model), torch.optim.SGD(model.parameters(), 0.1)

        def window_loss(ids_TB, state, model=model):
            features, _ = model(ids_TB[:-1], state)
            return cross_entropy(model.logits(features).flatten(0, 1), ids_TB[1:].flatten())

        loss_of, nats = torch.compile(window_loss) if compiled else window_loss, []
        for _ in range(5):
            descent.zero_grad()
            loss = loss_of(ids_TB, model.initial_state(3))
            loss.backward()
            descent.step()
            nats.append(loss.item())
        losses.append(nats)
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)

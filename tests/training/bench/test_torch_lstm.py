from dataclasses import replace

import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates, sample_masks
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size

SHAPE = ModelConfig(vocab_size=30, hidden_size=12, num_layers=2, mogrifier_rounds=4, tie_embeddings=True)


@pytest.fixture
def model():
    shape = lstm_of_equal_size(SHAPE)
    model = TorchLSTM(shape, dropout=0.5)
    model.initialise(chrono_max=20.0, generator=torch.Generator().manual_seed(1))
    return model


def _ids(*shape):
    return torch.randint(30, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("hidden", [40, 400])
def test_it_has_as_many_weights(hidden):
    """As wide as it can be without more weights than the other model, torch's second biases apart."""
    config = replace(SHAPE, vocab_size=5000, hidden_size=hidden)
    shape = lstm_of_equal_size(config)
    second_biases = 4 * shape.hidden_size * shape.num_layers
    weights = sum(weight.numel() for weight in TorchLSTM(shape).parameters())
    assert weights - second_biases <= config.num_parameters
    wider = TorchLSTM(replace(shape, hidden_size=shape.hidden_size + 1))
    assert sum(weight.numel() for weight in wider.parameters()) > config.num_parameters


def test_a_window_is_its_tokens_one_by_one(model):
    """Features and state are the same, whether read at once or step by step."""
    ids_TB = _ids(7, 3)
    whole, end = model(ids_TB, model.initial_state(3))
    state, parts = model.initial_state(3), []
    for ids_B in ids_TB:
        features, state = model.step(ids_B, state)
        parts.append(features)
    torch.testing.assert_close(torch.stack(parts), whole)
    torch.testing.assert_close(state, end)


def test_the_layers_are_those_of_the_textbook(model):
    """One step of the first layer, written out: gates i, f, g, o."""
    x, state = model.embedding.embed(_ids(1, 2)), model.initial_state(2)
    state = type(state)(state.h + 0.1, state.c + 0.2)
    _, after = model.read(x, state)
    lstm = model.stack.lstm
    gates = x[0] @ lstm.weight_ih_l0.t() + state.h[0] @ lstm.weight_hh_l0.t()
    i, f, g, o = (gates + lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4, 1)
    c = f.sigmoid() * state.c[0] + i.sigmoid() * g.tanh()
    torch.testing.assert_close(after.c[0], c)
    torch.testing.assert_close(after.h[0], o.sigmoid() * c.tanh())


def test_units_are_dropped_with_masks_only(model):
    """With the masks of a window its output is thinned and differs each time; without, it never does."""
    ids_TB, state = _ids(5, 4), model.initial_state(4)
    rates = DropoutRates(input=0.2, cell=0.5, output=0.2)
    hidden = model.config.hidden_size
    masks = sample_masks(rates, time=5, batch=4, layers=2, hidden=hidden, like=state.h)
    dropped, again = (model(ids_TB, state, masks)[0] for _ in range(2))
    assert bool((dropped[masks.cell[-1] == 0] == 0).all())
    assert bool((dropped[masks.output == 0] == 0).all())
    assert not torch.equal(dropped, again)
    plain, same = (model(ids_TB, state)[0] for _ in range(2))
    assert torch.equal(plain, same)


@pytest.mark.parametrize("chrono_max", [None, 20.0])
def test_forget_gates_begin_as_those_of_our_models(model, chrono_max):
    """Around the logarithm of a time, or at 1; torch's second bias adds nothing to it."""
    model.initialise(chrono_max=chrono_max, generator=torch.Generator().manual_seed(3))
    hidden = model.config.hidden_size
    for layer in range(2):
        first, second = (getattr(model.stack.lstm, f"bias_{part}_l{layer}") for part in ("ih", "hh"))
        forget = (first + second)[hidden : 2 * hidden].exp()
        if chrono_max is None:
            torch.testing.assert_close(forget.log(), torch.ones(hidden))
        else:
            assert bool(((forget >= 1) & (forget <= chrono_max - 1)).all())
            assert forget.std() > 1

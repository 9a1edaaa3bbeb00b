"""The whole model against the slow reference."""

import numpy as np
import pytest
import torch

from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.state import State

TIME, BATCH = 4, 2
MODELS = [
    {"cell": cell, "mogrifier_rounds": rounds, "mogrifier_rank": rank, "num_layers": layers}
    for cell in ("rlstm", "lstm")
    for rounds, rank in ((0, 0), (1, 2), (2, 0), (3, 2), (4, 0), (5, 2), (6, 0), (6, 3))
    for layers in (1, 3)
] + [
    {"cell": "lstm", "cap_input_gate": False},
    {"tie_embeddings": True},
    {"mogrifier_bias": False, "mogrifier_rank": 2},
    {"stacking": "skip", "num_layers": 4},
    {"stacking": "plain", "num_layers": 4},
    {"stacking": "plain", "num_layers": 1},
]


def _inputs(model, seed=5):
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (TIME, BATCH), generator=generator)
    h, c = torch.rand(
        2, config.num_layers, BATCH, config.hidden_size, dtype=torch.float64, generator=generator
    )
    return ids, State(h, c)


def _all_masks(model, masks):
    ones = DropoutMasks(
        input=np.ones((TIME, BATCH, model.config.hidden_size)),
        cell=np.ones((model.config.num_layers, TIME, BATCH, model.config.hidden_size)),
        state=np.ones((model.config.num_layers, BATCH, model.config.hidden_size)),
        output=np.ones((TIME, BATCH, model.config.hidden_size)),
    )
    return {
        name: getattr(ones, name) if mask is None else mask.numpy() for name, mask in masks._asdict().items()
    }


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_oracle_b_the_model_equals_the_reference(random_model, reference, draw_masks, shape, rate):
    """Features, probabilities and state equal the NumPy model's to 1e-10, with all masks and without."""
    model = random_model(**shape)
    ids, state = _inputs(model)
    masks = draw_masks(model, rate, time=TIME, batch=BATCH)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected = reference.forward(
        model.config, weights, ids.numpy(), state.h.numpy(), state.c.numpy(), _all_masks(model, masks)
    )
    features, last = model(ids, state, masks)
    probabilities = model.log_probs(features).exp()
    for actual, wanted in zip((features, probabilities, last.h, last.c), expected, strict=True):
        np.testing.assert_allclose(actual.detach().numpy(), wanted, atol=1e-10)


@pytest.mark.parametrize("kind", ["input", "cell", "state", "output"])
def test_each_mask_alone_acts_as_in_the_reference(random_model, reference, draw_masks, kind):
    """No mask leans on another being there."""
    model = random_model()
    ids, state = _inputs(model)
    masks = NO_DROPOUT._replace(**{kind: getattr(draw_masks(model, 0.5, time=TIME, batch=BATCH), kind)})
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected, *_ = reference.forward(
        model.config, weights, ids.numpy(), state.h.numpy(), state.c.numpy(), _all_masks(model, masks)
    )
    features, _ = model(ids, state, masks)
    np.testing.assert_allclose(features.detach().numpy(), expected, atol=1e-10)


def test_step_equals_forward(random_model):
    """Token by token, features and state are those of the window."""
    model = random_model()
    ids, state = _inputs(model)
    whole, last = model(ids, state)
    for t in range(TIME):
        features, state = model.step(ids[t], state)
        torch.testing.assert_close(features, whole[t], atol=1e-12, rtol=0)
    torch.testing.assert_close(state.h, last.h, atol=1e-12, rtol=0)


def test_probabilities_of_all_next_tokens_sum_to_1(random_model):
    """In single precision too."""
    model = random_model(dtype=torch.float32, vocab_size=256, scale=2.0)
    ids = torch.randint(256, (20, 3))
    features, _ = model(ids, model.initial_state(3))
    sums = model.log_probs(features).exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones(20, 3), atol=1e-5, rtol=0)


def test_the_future_cannot_be_seen(random_model):
    """Changing the token read at t changes features from t on, and none before."""
    model = random_model()
    ids, state = _inputs(model)
    before, _ = model(ids, state)
    ids[2] = (ids[2] + 1) % model.config.vocab_size
    after, _ = model(ids, state)
    assert torch.equal(before[:2], after[:2])
    assert (before[2:] - after[2:]).abs().min(-1).values.max() > 0


def test_the_model_remembers_nothing_between_calls(random_model):
    """The same ids from the same state give the same bits, whatever was read in between."""
    model = random_model()
    ids, state = _inputs(model)
    first, _ = model(ids, state)
    model(ids.flip(0), state)
    again, _ = model(ids, state)
    assert torch.equal(first, again)


def test_oracle_d_equal_masks_make_dropout_samples_plain_cross_entropy(random_model, draw_masks):
    """The log of the mean over copies with the same masks is one copy's log-probability."""
    model = random_model()
    ids, state = _inputs(model)
    one = draw_masks(model, 0.4, time=TIME, batch=BATCH)
    row = DropoutMasks(
        input=one.input[:, :1], cell=one.cell[:, :, :1], state=one.state[:, :1], output=one.output[:, :1]
    )
    copies = DropoutMasks(
        input=row.input.expand(-1, 3, -1),
        cell=row.cell.expand(-1, -1, 3, -1),
        state=row.state.expand(-1, 3, -1),
        output=row.output.expand(-1, 3, -1),
    )
    single, _ = model(ids[:, :1], state.rows(slice(0, 1)), row)
    triple, _ = model(ids[:, :1].expand(-1, 3), state.rows(slice(0, 1)).expand(3), copies)
    mean = model.log_probs(triple).logsumexp(1) - np.log(3)
    torch.testing.assert_close(mean, model.log_probs(single)[:, 0], atol=1e-12, rtol=0)

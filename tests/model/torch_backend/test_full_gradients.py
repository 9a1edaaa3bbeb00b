"""A segment's gradient against plain automatic differentiation, and finite differences."""

import pytest
import torch

from rlstm_model.torch_backend.full import FullFastWeights

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 2, "mogrifier_rank": 0},
    {"cell": "lstm", "mogrifier_rounds": 0},
    {"softmax_components": 3},
    {"softmax_components": 2, "tie_embeddings": True},
]
FLAGS = [[True] * 4, [True, False, False, True], [False, False, True, False], [False] * 4]


@pytest.fixture
def case(tiny_model, text):
    """Makes a model in float64, fast weights with a delta, a state in mid-text, inputs and targets."""

    def make(**shape):
        model = tiny_model(dtype=torch.float64, **shape)
        fast_weights = FullFastWeights(model)
        delta = 0.1 * torch.randn(
            fast_weights.size, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
        _, state = model(torch.tensor(text(6))[:, None], model.initial_state(1))
        return fast_weights, delta, state, text(4, seed=8), text(4, seed=9)

    return make


def segment_gradient(
    fast_weights, delta, state, inputs, targets, learn, *, segment, reduction, temperature=1.0
):
    """One row's segment, learned from as an evaluator does."""
    weights = torch.tensor(learn, dtype=torch.float64) / (segment if reduction == "mean" else 1)
    columns = [torch.tensor(column)[:, None] for column in (inputs, targets)]
    return fast_weights.learn(delta[None], *columns, weights[:, None], state, temperature=temperature)


def losses_by_hand(fast_weights, delta, state, inputs, targets, temperature=1.0):
    """Each token's loss by single steps of a plain model with the summed weights, and its weights."""
    twin = type(fast_weights.model)(fast_weights.model.config).double()
    slow = fast_weights.model.state_dict()
    twin.load_state_dict({name: slow[name] + part for name, part in fast_weights.split(delta).items()})
    losses = []
    for token, target in zip(inputs, targets, strict=True):
        features, state = twin.step(torch.tensor([token]), state)
        losses.append(-twin.log_probs(features, temperature)[0, target])
    return losses, list(twin.parameters())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("learn", FLAGS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equals_autograd_over_single_steps(case, flat, shape, learn, reduction):
    """The gradient is of the flagged tokens' summed loss, divided by S (not by their number) for the mean."""
    fast_weights, delta, state, inputs, targets = case(**shape)
    done = segment_gradient(
        fast_weights, delta, state, inputs, targets, learn, segment=4, reduction=reduction
    )
    losses, weights = losses_by_hand(fast_weights, delta, state, inputs, targets)
    loss = sum(loss * flag for loss, flag in zip(losses, learn, strict=True)) / (
        4 if reduction == "mean" else 1
    )
    expected = torch.autograd.grad(loss, weights, materialize_grads=True)
    torch.testing.assert_close(done.gradient_NP[0], flat(expected), rtol=1e-9, atol=1e-11)
    log_probs = torch.log_softmax(done.logits_TNV[:, 0], -1)[range(4), targets]
    torch.testing.assert_close(-log_probs, torch.stack(losses).detach())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pitfall_23_the_temperature_is_in_the_loss(case, flat, shape):
    """The gradient is of the loss at the temperature, and so are the distributions that come with it."""
    fast_weights, delta, state, inputs, targets = case(**shape)
    done = segment_gradient(
        fast_weights,
        delta,
        state,
        inputs,
        targets,
        [True] * 4,
        segment=4,
        reduction="mean",
        temperature=0.8,
    )
    losses, weights = losses_by_hand(fast_weights, delta, state, inputs, targets, temperature=0.8)
    expected = torch.autograd.grad(sum(losses) / 4, weights, materialize_grads=True)
    torch.testing.assert_close(done.gradient_NP[0], flat(expected), rtol=1e-9, atol=1e-11)
    log_probs = torch.log_softmax(done.logits_TNV[:, 0], -1)[range(4), targets]
    torch.testing.assert_close(-log_probs, torch.stack(losses).detach())


def test_the_next_pass_overwrites_the_whole_gradient(case):
    """Rows that the last segment read, and this one does not, keep nothing of it."""
    fast_weights, delta, state, inputs, targets = case()
    arguments = (inputs, targets, [True] * 4)
    first = segment_gradient(fast_weights, delta, state, *arguments, segment=4, reduction="mean")
    expected = first.gradient_NP[0].clone()
    others = [(token + 1) % 11 for token in inputs]
    segment_gradient(fast_weights, delta, state, others, others, [True] * 4, segment=4, reduction="mean")
    again = segment_gradient(fast_weights, delta, state, *arguments, segment=4, reduction="mean")
    assert torch.equal(again.gradient_NP[0], expected)


def test_pitfall_32_nothing_flows_back_across_the_start(case):
    """The incoming state is cut from its history, and what comes out has none."""
    fast_weights, delta, state, inputs, targets = case()
    state.h.requires_grad_(True)
    done = segment_gradient(
        fast_weights, delta, state, inputs, targets, [True] * 4, segment=4, reduction="mean"
    )
    assert state.h.grad is None
    assert not any(tensor.requires_grad for tensor in (*done.state, done.logits_TNV, done.gradient_NP[0]))

"""Monte-Carlo dropout against brute force: one sample after another, one token after another."""

import math

import pytest
import torch

from rlstm_model.network.dropout import DropoutMasks, DropoutRates, sample_masks
from rlstm_training.evaluation.evaluation import evaluator_of
from rlstm_training.evaluation.monte_carlo import (
    DroppingModel,
    MonteCarlo,
    Text,
    sampled_adapted_log_probs,
    sampled_log_probs,
    scaled,
)

BOS = 10
RATES = DropoutRates(input=0.3, cell=0.2, state=0.25, output=0.4)
WINDOW = 7


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(vocab_size=128)


@pytest.fixture(scope="module")
def ids(words):
    return list(words(5, 3))


@pytest.fixture(scope="module")
def calibration(model, measure_rule):
    return measure_rule(model, 60, segment=6, rate=3e-2)


def _masks(model, generator, time, batch):
    return sample_masks(
        RATES,
        time=time,
        batch=batch,
        layers=model.config.num_layers,
        hidden=model.config.hidden_size,
        like=model.embedding.input,
        generator=generator,
    )


def _masks_of(masks, sample, steps=slice(None)):
    """One sample's masks, for one row: its own at every step, that of the state for the window."""
    row = slice(sample, sample + 1)
    return DropoutMasks(
        input=masks.input[steps, row],
        cell=masks.cell[:, steps, row],
        state=masks.state[:, row],
        output=masks.output[steps, row],
    )


def _windows(ids):
    inputs = [BOS, *ids[:-1]]
    for start in range(0, len(ids), WINDOW):
        yield inputs[start : start + WINDOW], ids[start : start + WINDOW]


def test_arithmetic_equals_one_sample_after_another(model, ids):
    """The mean of probabilities over passes that each have a state and masks of their own."""
    samples, generator = 3, torch.Generator().manual_seed(5)
    states = [model.initial_state(1) for _ in range(samples)]
    expected = []
    for inputs, targets in _windows(ids):
        masks = _masks(model, generator, len(inputs), samples)
        passes = []
        for sample in range(samples):
            ids_T1 = torch.tensor(inputs)[:, None]
            features, states[sample] = model(ids_T1, states[sample], _masks_of(masks, sample))
            probabilities = torch.softmax(model.logits(features[:, 0]).double(), -1)
            passes.append(probabilities[range(len(targets)), targets])
        expected.append(torch.stack(passes).mean(0).log())
    sampling = MonteCarlo(samples=samples, rates=RATES, window=WINDOW, seed=5)
    found = sampled_log_probs(Text(model, ids, BOS), sampling)
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)


def test_geometric_equals_one_step_after_another(model, ids):
    """The mean of logits, renormalised; every sample of a step begins with the undropped model's state."""
    samples, generator = 3, torch.Generator().manual_seed(5)
    state, expected = model.initial_state(1), []
    for inputs, targets in _windows(ids):
        masks = _masks(model, generator, len(inputs), samples)
        for t, (token, target) in enumerate(zip(inputs, targets, strict=True)):
            step, logits = slice(t, t + 1), []
            for sample in range(samples):
                features, _ = model(torch.tensor([[token]]), state, _masks_of(masks, sample, step))
                logits.append(model.logits(features[0, 0]).double())
            expected.append(torch.log_softmax(torch.stack(logits).mean(0), -1)[target])
            _, state = model(torch.tensor([[token]]), state)
    sampling = MonteCarlo(samples=samples, rates=RATES, averaging="geometric", window=WINDOW, seed=5)
    found = sampled_log_probs(Text(model, ids, BOS), sampling)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)


def test_many_samples_are_read_in_groups(model, ids, monkeypatch):
    """How many rows are read at once is of no account, but for the dice."""
    monkeypatch.setattr("rlstm_training.evaluation.monte_carlo._ROWS_AT_ONCE", 2)
    sampling = MonteCarlo(samples=5, rates=DropoutRates(), window=WINDOW)
    found = sampled_log_probs(Text(model, ids, BOS), sampling)
    whole = sampled_log_probs(Text(model, ids, BOS), MonteCarlo(samples=1, rates=DropoutRates()))
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)


def test_pitfall_25_the_average_is_over_probabilities(model, ids):
    """The mean of probabilities is above the mean of logarithms, which would be no evaluation."""
    singles = [
        sampled_log_probs(Text(model, ids, BOS), MonteCarlo(samples=1, rates=RATES, seed=seed))
        for seed in range(20)
    ]
    mean_of_logs = torch.stack(singles).mean()
    averaged = sampled_log_probs(Text(model, ids, BOS), MonteCarlo(samples=20, rates=RATES)).mean()
    assert averaged > mean_of_logs + 0.02


def test_learning_samples_equal_adapters_of_their_own(model, ids, calibration):
    """Samples are passes with masks that go on from one to the next, and weights that do not."""
    found = sampled_adapted_log_probs(
        Text(model, ids, BOS), calibration, MonteCarlo(samples=2, rates=RATES, seed=4)
    )
    dropping = DroppingModel(model, RATES, torch.Generator().manual_seed(4))
    evaluator = evaluator_of(dropping, calibration, bos_id=BOS)
    passes = []
    for _ in range(2):
        observed = list(evaluator.observe(evaluator.start(static=False), ids))
        passes.append(torch.cat([torch.from_numpy(part.scores.logprobs) for part in observed]).double())
    expected = torch.logsumexp(torch.stack(passes), 0) - math.log(2)
    torch.testing.assert_close(found, expected)
    assert not torch.equal(passes[0], passes[1])


def test_pitfall_6_a_dropping_model_draws_masks_anew(model, ids):
    """Fresh masks at every step and window; the shared model itself drops nothing and keeps its bits."""
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    dropping = DroppingModel(model, RATES, torch.Generator().manual_seed(1))
    window = torch.tensor(ids[:4])[:, None]
    first, second = (dropping(window, model.initial_state(1))[0] for _ in range(2))
    plain, _ = model(window, model.initial_state(1))
    assert not torch.equal(first, second)
    assert torch.equal(model(window, model.initial_state(1))[0], plain)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert dropping.embedding.input is model.embedding.input


def test_rates_are_scaled_together():
    """Eight tenths of training's rates; no rate may reach 1."""
    assert scaled(DropoutRates(input=0.5, output=0.25), 0.8) == DropoutRates(input=0.4, output=0.2)
    with pytest.raises(ValueError, match=r"dropout\.input"):
        scaled(DropoutRates(input=0.5), 2.0)

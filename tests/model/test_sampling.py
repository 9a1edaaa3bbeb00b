"""Choosing a token: each filter against a plain reading of its definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.sampling import SamplingConfig, sample, uniform

LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=12)
CONFIGS = st.builds(
    SamplingConfig,
    temperature=st.floats(0.01, 5),
    top_k=st.integers(0, 20),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
)


def _log_probs(probabilities):
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def _softmax(logits):
    shifted = np.array(logits) - max(logits)
    return _log_probs(np.exp(shifted) / np.exp(shifted).sum())


def _distribution(log_probs, config, seen=(), grid=1000):
    """The share of each token over an even grid of uniform numbers."""
    drawn = [sample(log_probs, config, (step + 0.5) / grid, seen) for step in range(grid)]
    return np.bincount(drawn, minlength=len(log_probs)) / grid


def test_plain_sampling_follows_the_distribution():
    """Inverting the cumulative distribution gives every token its share."""
    probabilities = [0.1, 0.2, 0.0, 0.7]
    shares = _distribution(_log_probs(probabilities), SamplingConfig())
    np.testing.assert_allclose(shares, probabilities, atol=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_log_probabilities(temperature):
    """Shares are p^(1/T), normalised."""
    probabilities = np.array([0.1, 0.2, 0.7])
    expected = probabilities ** (1 / temperature)
    shares = _distribution(_log_probs(probabilities), SamplingConfig(temperature=temperature))
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=2e-3)


@given(LOGITS, st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 9e-4]))
def test_low_temperature_takes_the_most_probable_token(logits, number, temperature):
    """Whatever the random number; the lowest id of those that tie."""
    log_probs = _softmax(logits)
    chosen = sample(log_probs, SamplingConfig(temperature=temperature), number)
    assert chosen == log_probs.tolist().index(max(log_probs.tolist()))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.0}, [0, 1, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.95}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"min_p": 0.5}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"min_p": 1.0}, [0, 1, 0, 0]),
    ],
    ids=str,
)
def test_filters_keep_what_they_say(config, expected):
    """Each works on what the one before it left, renormalised."""
    shares = _distribution(_log_probs([0.1, 0.4, 0.3, 0.2]), SamplingConfig(**config))
    np.testing.assert_allclose(shares, expected, atol=2e-3)


def test_top_k_resolves_ties_by_the_lower_id():
    """Among many equal tokens, with others between them, the first ones stay."""
    log_probs = _softmax([0.0, -1.0, -2.0] * 100)
    shares = _distribution(log_probs, SamplingConfig(top_k=3))
    np.testing.assert_allclose(shares[[0, 3, 6]], [1 / 3] * 3, atol=2e-3)


def test_the_repetition_penalty_acts_on_seen_tokens_only():
    """Their log-probabilities are multiplied, once however often they were seen."""
    config = SamplingConfig(repetition_penalty=2.0)
    expected = np.array([0.5**2, 0.3, 0.2])
    shares = _distribution(_log_probs([0.5, 0.3, 0.2]), config, seen=[0, 0, 0])
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=2e-3)


@given(LOGITS, CONFIGS, st.floats(0, 1, exclude_max=True))
def test_a_choice_is_always_an_id_with_a_chance(logits, config, number):
    """Any filters, any number below 1: an id of the vocabulary whose probability is not zero."""
    log_probs = _softmax([*logits, -math.inf])
    chosen = sample(log_probs, config, number, seen=range(0, len(logits), 2))
    assert type(chosen) is int
    assert 0 <= chosen < len(logits)


def test_the_largest_number_below_1_never_falls_off_the_end():
    """Whatever the number of tokens, it chooses the last of them that has a chance."""
    for count in (1, 3, 7, 256, 999):
        log_probs = np.full(count + 1, -math.log(count))
        log_probs[count] = -math.inf
        assert sample(log_probs, SamplingConfig(), math.nextafter(1.0, 0.0)) == count - 1


@pytest.mark.parametrize("bad", [[math.nan, -1.0], [-math.inf, -math.inf], [math.inf, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_distribution_is_an_error_not_noise(bad, temperature):
    """NaN is never turned into a token."""
    with pytest.raises(ArithmeticError, match="not finite"):
        sample(np.array(bad), SamplingConfig(temperature=temperature), 0.5)


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**70), st.integers(0, 2**70))
def test_uniform_is_a_function_of_its_arguments(seed, choice, index):
    """No hidden state: calls in between change nothing, and the result lies in [0, 1)."""
    first = uniform(seed, choice, index)
    uniform(seed + 1, choice, index)
    assert uniform(seed, choice, index) == first
    assert 0.0 <= first < 1.0


def test_uniform_numbers_are_even_and_distinct_along_every_argument():
    """1,000 numbers along each axis spread over [0, 1) and do not repeat."""
    for axis in range(3):
        numbers = [uniform(*(step if place == axis else 7 for place in range(3))) for step in range(1000)]
        assert len(set(numbers)) == 1000
        counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
        assert abs(counts - 100).max() < 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
    ],
)
def test_a_wrong_setting_is_named(field, value):
    """The error of a bad value begins with the field's name."""
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingConfig(**{field: value})

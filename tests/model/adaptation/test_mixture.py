"""The state of a mixture, and what it loses more than any expert, on streams made to hurt it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model import native
from rlstm_model.adaptation.mixture import MixtureState

NAN, INF = float("nan"), float("inf")
TOKENS = 150


def read(state, logprobs_K):
    """One token to which each expert gives a log-probability: the mixture's, and the state after it."""
    experts = [np.full((1, 16), logprob, np.float32)[:, :1] for logprob in logprobs_K]
    mixed = native.mix(experts, np.zeros(1, np.int32), np.array(state.weights), state.tokens, scores=False)
    return mixed.logprobs_T[0], MixtureState(tuple(mixed.weights_K.tolist()), mixed.tokens)


def _random(weights_K, t, noise_K):
    return -80 * noise_K**4


def _adversarial(weights_K, t, noise_K):
    """The expert that is trusted most gets the worst log-probability, the least trusted the best."""
    return -80.0 * noise_K[0] * weights_K.argsort().argsort() / (len(weights_K) - 1)


def _teasing(weights_K, t, noise_K):
    """As little harm to the trusted expert as dethrones it."""
    return np.where(weights_K == weights_K.max(), -np.log1p(weights_K.max()) - 0.01 - noise_K, 0.0)


def _switching(weights_K, t, noise_K):
    """One expert is right, for stretches of ever more tokens; then another is."""
    right = math.isqrt(t) % len(weights_K)
    return np.where(np.arange(len(weights_K)) == right, -0.01 * noise_K, -80 * noise_K)


def _loyal(weights_K, t, noise_K):
    """One expert is right for ever: nearly all that the bound allows is lost to it."""
    return np.where(np.arange(len(weights_K)) == 1, 0.0, -80.0 + noise_K)


@given(
    st.sampled_from([2, 4]),
    st.sampled_from([_random, _adversarial, _teasing, _switching, _loyal]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_the_regret_is_bounded_on_hostile_streams(experts, hostile, seed, often):
    """Never over ln K + ln(T + 1) more than any expert, also where others start anew at any tokens.

    Every state on the way is one that can be stored, and no weight falls below its share.
    """
    generator, state = np.random.default_rng(seed), MixtureState.start(experts)
    lost, own_K, never = 0.0, np.zeros(experts), np.arange(experts) < experts // 2
    for t in range(TOKENS):
        logprobs_K = np.float32(hostile(np.array(state.weights), t, generator.random(experts)))
        own_K -= logprobs_K.astype(np.float64)
        logprob, state = read(state, logprobs_K)
        lost -= logprob
        if often:
            state = state.drop((generator.random(experts) < often) & ~never)
        state.check()
        assert min(state.weights) >= (1 - 1e-9) / (t + 2) / experts
        least = own_K[never].min() if often else own_K.min()
        assert lost - least <= math.log(experts) + math.log(t + 2) + 1e-6


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_one_perfect_expert_attains_the_sharper_bound(experts):
    """The regret against it is ln K + sum over t < T - 1 of -ln(1 - a_t (K - 1) / K)."""
    state, regret = MixtureState.start(experts), 0.0
    for _ in range(300):
        logprob, state = read(state, [0.0] + [-INF] * (experts - 1))
        regret -= logprob
    kept = [1 - (experts - 1) / experts / (t + 2) for t in range(299)]
    assert regret == pytest.approx(math.log(experts) - math.fsum(map(math.log, kept)), abs=1e-10)
    assert regret <= math.log(experts) + math.log(300)


@given(
    st.lists(st.lists(st.floats(-80, 0), min_size=4, max_size=4), max_size=40),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_an_expert_that_starts_anew_counts_no_more_than_its_share(tokens, dropped):
    """Its weight is the least that there can be, no other one falls, and the state can be stored."""
    before = MixtureState.start(4)
    for logprobs_K in tokens:
        _, before = read(before, logprobs_K)
    after = before.drop([False, *dropped])
    after.check()
    least = 1 / (len(tokens) + 1) / 4
    for old, new, out in zip(before.weights, after.weights, [False, *dropped], strict=True):
        assert new == pytest.approx(least, rel=1e-9) if out else new >= old * (1 - 1e-9)


@pytest.mark.parametrize(
    ("weights", "tokens", "message"),
    [
        ([0.5, NAN], 3, "weight 1 is not finite"),
        ([INF, 0.5], 3, "weight 0 is not finite"),
        ([1.5, -0.5], 3, "weight 1 is -0.5"),
        ([1.0, 0.0], 3, "weight 1 is 0.0, too small"),
        ([0.9, 0.1], 3, "too small after 3 tokens"),
        ([0.6, 0.4], 0, "too small after 0 tokens"),
        ([0.5, 0.5 + 2e-9], 3, "weights sum to"),
        ([0.5, 0.5], -1, "not 2 and -1"),
        ([], 3, "not 0 and 3"),
    ],
    ids=str,
)
def test_stored_weights_that_are_none_are_named(weights, tokens, message):
    with pytest.raises(ValueError, match=message):
        MixtureState(tuple(weights), tokens).check()

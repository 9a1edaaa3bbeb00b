"""The mixture in the native core against the same sums in float64."""

import numpy as np
import pytest

from rlstm_model import native

TIME = 12


def distributions(generator, experts, vocabulary, spread=3.0):
    """Log-probabilities of experts, in rows with room for padding."""
    stride = -(-vocabulary // 16) * 16
    rows = []
    for _ in range(experts):
        logits = generator.normal(size=(TIME, vocabulary)) * spread
        whole = np.zeros((TIME, stride), np.float32)
        whole[:, :vocabulary] = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        rows.append(whole[:, :vocabulary])
    return rows


def expected(rows, targets, weights, tokens):
    """Weights before each token, and after all; the mixture's log-probabilities [T, V]."""
    before, mixed = [], []
    for t, target in enumerate(targets):
        before.append(weights)
        p_KV = np.exp(np.array([row[t] for row in rows], np.float64))
        mixed.append(np.log(weights @ p_KV))
        joint = weights * p_KV[:, target]
        share = 1 / (tokens + t + 2)
        weights = joint / joint.sum() * (1 - share) + share / len(rows)
    return np.array(before), weights, np.array(mixed)


@pytest.mark.parametrize("experts", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [2, 16, 37])
def test_scores_and_weights_are_those_of_the_sums(experts, vocabulary):
    generator = np.random.default_rng(experts)
    rows = distributions(generator, experts, vocabulary)
    targets = generator.integers(vocabulary, size=TIME).astype(np.int32)
    weights = generator.dirichlet(np.ones(experts))
    done = native.mix(rows, targets, weights, 3, whole=True)
    _, after, mixed = expected(rows, targets, weights, 3)
    own = mixed[np.arange(TIME), targets]
    np.testing.assert_allclose(done.logprobs_T, own, atol=1e-6)
    np.testing.assert_allclose(done.weights_K, after, atol=1e-6)
    np.testing.assert_allclose(done.log_probs_TV, mixed, atol=2e-6)
    np.testing.assert_allclose(done.entropies_T, -(np.exp(mixed) * mixed).sum(1), atol=2e-5)
    assert done.ranks_T.tolist() == [
        1 + int((row > value).sum()) for row, value in zip(mixed, own, strict=True)
    ]
    assert (done.tokens, done.read, done.broken_K.any()) == (3 + TIME, TIME, False)
    np.testing.assert_allclose(np.exp(done.log_probs_TV.astype(np.float64)).sum(1), 1, atol=1e-5)


def test_a_broken_expert_is_not_heard():
    generator = np.random.default_rng(1)
    rows, targets = distributions(generator, 3, 18), generator.integers(18, size=TIME).astype(np.int32)
    rows[1][4:] = np.nan
    done = native.mix(rows, targets, np.full(3, 1 / 3), 0)
    assert done.broken_K.tolist() == [False, True, False]
    assert np.isfinite(done.logprobs_T).all()
    assert np.isfinite(done.entropies_T).all()
    assert done.weights_K.sum() == pytest.approx(1, abs=1e-12)
    assert done.weights_K[1] < 0.1
    for row in rows:
        row[7:] = np.nan
    lost = native.mix(rows, targets, np.full(3, 1 / 3), 0)
    assert (lost.read, lost.tokens) == (7, 7)


def test_what_is_impossible_to_all_tells_nothing():
    rows, targets = distributions(np.random.default_rng(2), 2, 16), np.zeros(TIME, np.int32)
    for row in rows:
        row[:, 0] = -np.inf
    done = native.mix(rows, targets, np.array([0.3, 0.7]), 10**6)
    assert (done.logprobs_T == -np.inf).all()
    np.testing.assert_allclose(done.weights_K, [0.3, 0.7], atol=1e-4)

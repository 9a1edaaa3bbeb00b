"""The mixture of experts against exact arithmetic in probability space.

Shape suffixes: S tokens, N sessions, K experts, V vocabulary.
"""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation.mixture import (
    MixtureState,
    broken_experts,
    check_state,
    drop,
    mix,
    read,
)
from rlstm_model.sampling import SamplingConfig, sample

INF, NAN = math.inf, math.nan

counts = st.sampled_from([1, 2, 3, 4])
seeds = st.integers(0, 2**32)
some = st.integers(1, 3)
short = st.integers(1, 12)
few = settings(max_examples=25)


@st.composite
def streams(draw, tokens=short, experts=counts, sessions=some):
    """Log-probabilities ``[S, N, K]`` from almost certain to exp(-80); here and there impossible."""
    shape = (draw(tokens), draw(sessions), draw(experts))
    generator = torch.Generator().manual_seed(draw(seeds))
    depth = draw(st.sampled_from([0.1, 3.0, 80.0]))
    logprobs = -depth * torch.rand(shape, generator=generator, dtype=torch.float64)
    gaps = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.1]))
    return logprobs.masked_fill(gaps, -INF)


def start(logprobs):
    return MixtureState.start(*logprobs.shape[1:])


def exact(logprobs):
    """One session by the formulas, in rational numbers: scores of the tokens, and weights after them."""
    weights = [Fraction(1, len(logprobs[0]))] * len(logprobs[0])
    scores = []
    for t, token in enumerate(logprobs):
        chances = [Fraction(math.exp(logprob)) for logprob in token]
        p = sum(weight * chance for weight, chance in zip(weights, chances, strict=True))
        scores.append(math.log(p) if p else -INF)
        if p:
            weights = [weight * chance / p for weight, chance in zip(weights, chances, strict=True)]
        share = Fraction(1, t + 2)
        weights = [(1 - share) * weight + share / len(weights) for weight in weights]
    return scores, [float(weight) for weight in weights]


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def same(found, expected):
    assert torch.equal(found.weights_NK, expected.weights_NK)
    assert torch.equal(found.tokens_N, expected.tokens_N)


@few
@given(streams(tokens=st.integers(1, 8)))
def test_reading_is_the_formulas(logprobs):
    """Scores and weights are those of rational arithmetic over plain probabilities."""
    found = read(start(logprobs), logprobs)
    for row in range(logprobs.shape[1]):
        scores, weights = exact(logprobs[:, row].tolist())
        close(found.logprobs_SN[:, row], torch.tensor(scores, dtype=torch.float64))
        close(found.state.weights_NK[row], torch.tensor(weights, dtype=torch.float64))
    assert (found.state.tokens_N == len(logprobs)).all()
    assert not found.broken_NK.any()
    assert not found.lost_N.any()


@few
@given(streams(experts=st.just(1), tokens=st.integers(1, 40)))
def test_one_expert_is_itself_to_the_last_bit(logprobs):
    """Whatever was read, a mixture of one scores with the expert's own numbers, float32 ones too."""
    logprobs = logprobs.float()
    found = read(start(logprobs), logprobs)
    assert torch.equal(found.logprobs_SN, logprobs[..., 0].double())
    assert torch.equal(found.state.weights_NK, torch.ones(logprobs.shape[1], 1, dtype=torch.float64))
    assert torch.equal(mix(found.state.weights_NK, logprobs.transpose(0, 1).mT), logprobs[..., 0].mT.double())


@few
@given(streams(), st.sets(st.integers(0, 12)))
def test_a_stream_may_be_cut_anywhere(logprobs, cuts):
    """Segments of any length, empty ones too, give the scores and the state of the whole."""
    whole = read(start(logprobs), logprobs)
    state, scores = start(logprobs), []
    for begin, end in pairwise([0, *sorted(cuts), len(logprobs)]):
        part = read(state, logprobs[begin:end])
        state, scores = part.state, [*scores, part.logprobs_SN]
    close(torch.cat(scores), whole.logprobs_SN)
    close(state.weights_NK, whole.state.weights_NK)
    assert torch.equal(state.tokens_N, whole.state.tokens_N)


@few
@given(streams(), seeds, st.sampled_from([NAN, INF, -INF, -1.0]))
def test_a_frozen_row_is_as_if_nothing_had_come(logprobs, seed, garbage):
    """What stands where a row is not active changes nothing, to the last bit, and scores 0."""
    active = torch.rand(logprobs.shape[:2], generator=torch.Generator().manual_seed(seed)) < 0.6
    found = read(start(logprobs), logprobs.masked_fill(~active[..., None], garbage), active)
    assert (found.logprobs_SN[~active] == 0).all()
    assert not found.broken_NK.any()
    assert not found.lost_N.any()
    for row in range(logprobs.shape[1]):
        one, tokens = slice(row, row + 1), active[:, row]
        alone = read(start(logprobs).rows(one), logprobs[tokens, one])
        assert torch.equal(found.logprobs_SN[tokens, row], alone.logprobs_SN[:, 0])
        same(found.state.rows(one), alone.state)


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_a_session_gets_what_it_would_get_alone(experts):
    """Any neighbours, any number of them, any position: the same bits."""
    generator = torch.Generator().manual_seed(1)
    logprobs = -80 * torch.rand(20, 1024, experts, generator=generator, dtype=torch.float64).square()
    log_probs = torch.randn(1024, experts, 11, generator=generator).log_softmax(-1)
    whole = read(start(logprobs), logprobs)
    mixed = mix(whole.state.weights_NK, log_probs)
    for rows in (slice(0, 1), slice(5, 8), slice(9, 25), slice(300, 1024), slice(1023, None)):
        part = read(start(logprobs).rows(rows), logprobs[:, rows])
        assert torch.equal(part.logprobs_SN, whole.logprobs_SN[:, rows])
        same(part.state, whole.state.rows(rows))
        assert torch.equal(mix(part.state.weights_NK, log_probs[rows]), mixed[rows])


@few
@given(streams(tokens=st.integers(1, 60)))
def test_no_weight_falls_below_its_share(logprobs):
    """After token t every weight is at least a_t / K, and all of a session sum to 1."""
    state, experts = start(logprobs), logprobs.shape[2]
    for t in range(len(logprobs)):
        state = read(state, logprobs[t : t + 1]).state
        assert (state.weights_NK >= (1 / (t + 2)) / experts).all()
        close(state.weights_NK.sum(1), torch.ones(len(state.tokens_N), dtype=torch.float64))


def test_an_impossible_token_tells_the_experts_nothing_apart():
    """When all give probability 0 the score is minus infinity and the weights only share."""
    state = read(MixtureState.start(1, 2), torch.tensor([[[-1.0, -3.0]]])).state
    found = read(state, torch.full((1, 1, 2), -INF))
    assert found.logprobs_SN.item() == -INF
    assert not found.broken_NK.any()
    close(found.state.weights_NK, state.weights_NK * (2 / 3) + 1 / 6)


@pytest.mark.parametrize("bad", [NAN, INF])
@few
@given(streams(experts=st.sampled_from([2, 4])), st.integers(0, 11), st.integers(0, 3))
def test_a_broken_expert_has_no_probability(bad, logprobs, token, expert):
    """It counts as impossible, is named, and the others predict the token as if they were all."""
    token, expert = token % len(logprobs), expert % logprobs.shape[2]
    logprobs = torch.where(logprobs.isinf(), -80.0, logprobs)
    broken, impossible = logprobs.clone(), logprobs.clone()
    broken[token, 0, expert], impossible[token, 0, expert] = bad, -INF
    found, expected = read(start(logprobs), broken), read(start(logprobs), impossible)
    others = torch.ones_like(expected.logprobs_SN)
    others[token, 0] -= expected.weights_SNK[token, 0, expert]
    close(found.logprobs_SN, expected.logprobs_SN - others.log())
    same(found.state, expected.state)
    assert found.broken_NK.nonzero().tolist() == [[0, expert]]
    assert not found.lost_N.any()
    after = read(start(logprobs), broken[: token + 1]).state.weights_NK[0, expert]
    assert after == (1 / (token + 2)) / logprobs.shape[2]


@pytest.mark.parametrize("experts", [1, 2, 4])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_session_without_any_expert_is_lost(bad, experts):
    """Its token is not read and has no score; its neighbour goes on, to the last bit."""
    logprobs = -torch.rand(3, 2, experts, generator=torch.Generator().manual_seed(0))
    broken = logprobs.clone()
    broken[1, 0] = bad
    found, healthy = read(start(logprobs), broken), read(start(logprobs), logprobs)
    assert found.lost_N.tolist() == [True, False]
    assert found.broken_NK.tolist() == [[True] * experts, [False] * experts]
    assert found.logprobs_SN[:, 0].isnan().tolist() == [False, True, False]
    same(found.state.rows(slice(0, 1)), read(start(logprobs), logprobs[[0, 2]]).state.rows(slice(0, 1)))
    assert torch.equal(found.logprobs_SN[:, 1], healthy.logprobs_SN[:, 1])
    same(found.state.rows(slice(1, 2)), healthy.state.rows(slice(1, 2)))


@few
@given(streams(), st.integers(2, 9), seeds)
def test_the_mixed_distribution_is_what_reading_scores(logprobs, vocab_size, seed):
    """Every token of the next distribution has the score that reading it would give; they sum to 1."""
    state, generator = read(start(logprobs), logprobs).state, torch.Generator().manual_seed(seed)
    logits = 30 * torch.randn(*logprobs.shape[1:], vocab_size, generator=generator, dtype=torch.float64)
    logits[0, 0, 0] = -INF
    log_probs = logits.log_softmax(-1)
    mixed = mix(state.weights_NK, log_probs)
    close(mixed.exp().sum(1), torch.ones(len(mixed), dtype=torch.float64))
    for token in range(vocab_size):
        close(mixed[:, token], read(state, log_probs[None, ..., token]).logprobs_SN[0])


def test_mixing_leaves_broken_experts_out():
    """The others are mixed as if they were all; a session of nothing else cannot be sampled from."""
    weights = torch.tensor([[0.7, 0.3]] * 3, dtype=torch.float64)
    log_probs = torch.full((3, 2, 4), -math.log(4))
    log_probs[1, 0, 2], log_probs[2, 0, 0], log_probs[2, 1, 3] = NAN, NAN, INF
    assert broken_experts(log_probs).tolist() == [[False, False], [True, False], [True, True]]
    log_probs[1, 1] = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    mixed = mix(weights, log_probs)
    torch.testing.assert_close(mixed[0].exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(mixed[1], log_probs[1, 1].double(), rtol=0, atol=1e-15)
    with pytest.raises(ArithmeticError, match="not finite"):
        sample(mixed[2], SamplingConfig(), 0.5)


drops = st.lists(st.booleans(), min_size=3, max_size=3)


@few
@given(streams(tokens=st.integers(0, 60), experts=st.just(4)), drops)
def test_an_expert_that_starts_anew_counts_no_more_than_its_share(logprobs, dropped):
    """Its weight is the least that there can be, no other one falls, and the state can be stored."""
    before = read(start(logprobs), logprobs).state
    dropped_NK = torch.tensor([[False, *dropped], *[[False] * 4] * (logprobs.shape[1] - 1)])
    after = drop(before, dropped_NK)
    check_state(after)
    least = 1 / (len(logprobs) + 1) / 4
    assert after.weights_NK[dropped_NK].tolist() == pytest.approx([least] * sum(dropped), rel=1e-12)
    assert (after.weights_NK >= before.weights_NK * (1 - 1e-12))[~dropped_NK].all()
    same(after.rows(slice(1, None)), before.rows(slice(1, None)))


@few
@given(streams(tokens=st.integers(0, 60)))
def test_every_state_that_was_read_passes_the_check(logprobs):
    """Whatever came, the weights are a distribution that can be stored and restored."""
    check_state(read(start(logprobs), logprobs).state)


@pytest.mark.parametrize(
    ("weights", "tokens", "message"),
    [
        ([[0.5, NAN]], [3], "weight 1 of session 0 is not finite"),
        ([[0.5, 0.5], [INF, 0.5]], [3, 3], "weight 0 of session 1 is not finite"),
        ([[1.5, -0.5]], [3], "weight 1 of session 0 is -0.5"),
        ([[1.0, 0.0]], [3], "weight 1 of session 0 is 0.0, too small"),
        ([[0.9, 0.1]], [3], "too small after 3 tokens"),
        ([[0.6, 0.4]], [0], "too small after 0 tokens"),
        ([[0.5, 0.5 + 2e-9]], [3], "weights of session 0 sum to"),
        ([[0.5, 0.5]], [-1], "tokens of session 0 must be at least 0, not -1"),
        ([[0.5, 0.5]], [3, 3], r"weights are \[1, 2\], tokens are \[2\]"),
        ([[]], [3], r"weights are \[1, 0\]"),
        ([0.5, 0.5], [3, 3], r"weights are \[2\]"),
        ([[0.5, 0.5]], [3.0], "tokens are torch.float"),
    ],
    ids=str,
)
def test_stored_weights_that_are_none_are_named(weights, tokens, message):
    """The error says which weight of which session is wrong, and how."""
    state = MixtureState(torch.tensor(weights, dtype=torch.float64), torch.tensor(tokens))
    with pytest.raises(ValueError, match=message):
        check_state(state)


def test_what_does_not_belong_together_is_refused():
    """Shapes that would broadcast, and counts that are none, are errors."""
    state = MixtureState.start(2, 4)
    with pytest.raises(ValueError, match=r"logprobs must be \[S, 2, 4\], not \[5, 2, 1\]"):
        read(state, torch.zeros(5, 2, 1))
    with pytest.raises(ValueError, match=r"active must be bool \[5, 2\], not torch.bool \[2\]"):
        read(state, torch.zeros(5, 2, 4), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="experts"):
        MixtureState.start(2, 0)

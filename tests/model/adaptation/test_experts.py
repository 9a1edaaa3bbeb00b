"""A stream's rows together: who is mixed, who is a reference, and who computed nothing."""

import pytest
import torch

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import Lineup
from rlstm_model.adaptation.experts import Distributions, mix
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.scoring import score_logits

NAN, INF = float("nan"), float("inf")
TOKENS, VOCAB = 7, 11


@pytest.fixture
def drawn():
    """Makes logits of R rows, and the tokens that came."""

    def make(rows, dtype=torch.float32):
        generator = torch.Generator().manual_seed(rows)
        logits = 2 * torch.randn(TOKENS, rows, VOCAB, generator=generator, dtype=dtype)
        return logits, torch.randint(VOCAB, (TOKENS,), generator=generator)

    return make


def equal_scores(found, expected):
    for name in ("logprobs", "ranks", "entropies", "top_ids", "top_logprobs"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None and other is None) or torch.equal(one, other), name


@pytest.mark.parametrize("static", [True, False])
def test_a_single_expert_is_its_own_row(drawn, static):
    """Its scores are those of its logits to the last bit, and so are those of the row beside it."""
    lineup = Lineup(experts=1, static=static)
    logits, targets = drawn(lineup.rows)
    found = Distributions.of(logits, targets).score(lineup, None, top=3)
    equal_scores(found.scores, score_logits(logits[:, -1], targets, 3))
    assert found.mixture is None
    if static:
        assert torch.equal(found.static_logprobs, score_logits(logits[:, 0], targets).logprobs)
    else:
        assert found.static_logprobs is None


@pytest.mark.parametrize("experts", [2, 4])
def test_several_are_mixed_by_hand(drawn, experts):
    """Scores, ranks, entropies and alternatives are of sum pi p, with pi as it was before each token."""
    lineup = Lineup(experts=experts)
    logits, targets = drawn(experts, torch.float64)
    weights, mixed = MixtureState.start(1, experts), []
    for logits_RV, target in zip(logits, targets, strict=True):
        probabilities = logits_RV.softmax(-1)
        mixed.append((weights.weights_NK[0, :, None] * probabilities).sum(0).log())
        weights = mixture.read(weights, probabilities[:, target].log()[None, None]).state
    found = Distributions.of(logits, targets).score(lineup, MixtureState.start(1, experts), top=3)
    expected = score_logits(torch.stack(mixed), targets, 3)
    torch.testing.assert_close(found.scores.logprobs, expected.logprobs)
    torch.testing.assert_close(found.scores.entropies, expected.entropies)
    assert torch.equal(found.scores.ranks, expected.ranks)
    assert torch.equal(found.scores.top_ids, expected.top_ids)
    torch.testing.assert_close(found.mixture, weights)
    assert torch.equal(found.static_logprobs, score_logits(logits[:, 0], targets).logprobs)


def test_the_mixture_goes_on_where_it_was(drawn):
    """A text in two parts is mixed as the whole is."""
    logits, targets = drawn(4)
    predicted = Distributions.of(logits, targets)
    whole, after = mix(predicted.log_probs_TRV, predicted.own_TR, MixtureState.start(1, 4))
    first, between = mix(predicted.log_probs_TRV[:3], predicted.own_TR[:3], MixtureState.start(1, 4))
    second, end = mix(predicted.log_probs_TRV[3:], predicted.own_TR[3:], between)
    torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(end, after, rtol=1e-12, atol=1e-12)
    assert int(after.tokens_N) == TOKENS


def test_log_probabilities_alone(drawn):
    """Without ranks and entropies the log-probabilities are the same bits."""
    logits, targets = drawn(4)
    predicted, start = Distributions.of(logits, targets), MixtureState.start(1, 4)
    lean = predicted.score(Lineup(experts=4), start, logprobs_only=True).scores
    assert torch.equal(lean.logprobs, predicted.score(Lineup(experts=4), start).scores.logprobs)
    assert not lean.ranks.any()


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("token", [0, TOKENS - 1])
def test_a_row_with_one_bad_logit_is_broken(drawn, value, token):
    """Anywhere in the vocabulary, at any token; the other rows are not."""
    logits, targets = drawn(4)
    logits[token, 2, (targets[token] + 1) % VOCAB] = value
    assert Distributions.of(logits, targets).broken == [False, False, True, False]


def test_an_impossible_token_is_not_broken(drawn):
    """A probability of 0 is a number: its score is the floor, and the mixture's is not."""
    logits, targets = drawn(2)
    logits[0, 0, targets[0]] = -INF
    predicted = Distributions.of(logits, targets)
    assert predicted.broken == [False, False]
    found = predicted.score(Lineup(experts=2), MixtureState.start(1, 2))
    assert found.static_logprobs[0] == -9999.0
    assert found.scores.logprobs[0] > -20

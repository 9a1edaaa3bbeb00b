"""The mixture's guarantee: what it loses more than any single expert, on streams made to hurt it.

Shape suffixes: N sessions, K experts.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.adaptation.mixture import MixtureState, drop, read


def _random(weights_NK, t, noise):
    return -80 * noise**4


def _adversarial(weights_NK, t, noise):
    """The expert that is trusted most gets the worst log-probability, the least trusted the best."""
    ranks = weights_NK.argsort(1).argsort(1)
    return -80.0 * noise[:, :1] * ranks / (weights_NK.shape[1] - 1)


def _teasing(weights_NK, t, noise):
    """As little harm to the trusted expert as dethrones it."""
    best = weights_NK.max(1, keepdim=True).values
    return torch.where(weights_NK == best, -best.log1p() - 0.01 - noise, 0.0)


def _switching(weights_NK, t, noise):
    """One expert is right, for stretches of ever more tokens; then another is."""
    right = math.isqrt(t) % weights_NK.shape[1]
    return torch.where(torch.arange(weights_NK.shape[1]) == right, -0.01 * noise, -80 * noise)


def _loyal(weights_NK, t, noise):
    """One expert is right for ever: nearly all that the bound allows is lost to it."""
    return torch.where(torch.arange(weights_NK.shape[1]) == 1, 0.0, -80.0 + noise)


HOSTILE = [_random, _adversarial, _teasing, _switching, _loyal]


@pytest.mark.parametrize("experts", [2, 4])
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_the_regret_is_bounded_on_hostile_streams(hostile, experts):
    """1,000 streams, 200 of a kind: the mixture never loses over ln K + ln T more than any expert."""
    generator, sessions = torch.Generator().manual_seed(experts), 200
    state = MixtureState.start(sessions, experts)
    lost_NK, lost_N = torch.zeros(sessions, experts, dtype=torch.float64), torch.zeros(sessions).double()
    for t in range(300):
        noise = torch.rand(sessions, experts, generator=generator, dtype=torch.float64)
        logprobs = hostile(state.weights_NK, t, noise).double()
        found = read(state, logprobs[None])
        state, lost_NK, lost_N = found.state, lost_NK - logprobs, lost_N - found.logprobs_SN[0]
        regret = (lost_N - lost_NK.amin(1)).max().item()
        assert regret <= math.log(experts) + math.log(t + 1) + 1e-9


@given(st.integers(0, 2**32), st.floats(0, 0.5))
def test_the_bound_stays_where_others_start_anew(seed, often):
    """Experts that restart at any tokens raise no loss against those that never do."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = -8 * torch.rand(60, 1, 4, generator=generator, dtype=torch.float64).square()
    state, lost = MixtureState.start(1, 4), torch.zeros((), dtype=torch.float64)
    for token, own in enumerate(logprobs):
        found = read(state, own[None])
        dropped = torch.rand(1, 4, generator=generator) < often
        dropped[:, :2] = False
        state, lost = drop(found.state, dropped), lost - found.logprobs_SN.sum()
        for expert in (0, 1):
            alone = -logprobs[: token + 1, 0, expert].sum()
            assert float(lost - alone) <= math.log(4) + math.log(token + 2) + 1e-9


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_one_perfect_expert_attains_the_sharper_bound(experts):
    """The regret against it is ln K + sum over t < T - 1 of -ln(1 - a_t (K - 1) / K)."""
    logprobs = torch.full((300, 1, experts), -math.inf, dtype=torch.float64)
    logprobs[..., 0] = 0.0
    regret = -read(MixtureState.start(1, experts), logprobs).logprobs_SN.sum().item()
    kept = [1 - (experts - 1) / experts / (t + 2) for t in range(299)]
    assert regret == pytest.approx(math.log(experts) - math.fsum(map(math.log, kept)), abs=1e-10)
    assert regret <= math.log(experts) + math.log(300)

"""The mixture of experts: Bayes over learning rates, with a decreasing share.

Nobody knows the right rate of a stream in advance, so a session reads its text with K experts at once and
predicts with their mixture (docs/adaptation.md §4; after Herbster & Warmuth 1998, Koolen & de Rooij 2013):

    p(w) = sum_k pi_k p_k(w)      pi_k <- pi_k p_k(w) / p(w)      pi_k <- (1 - a_t) pi_k + a_t / K

with a_t = 1 / (t + 2) for the token number t = 0, 1, ... of the session. Weights are kept as probabilities
in float64, not as logarithms: the share never leaves one below a_t / K, so none can underflow; it is linear,
and would cost an exponential and a logarithm a token; and what is stored is what answers show. Likelihoods
are taken relative to the best expert of their token, so that however improbable it is nothing underflows.
An expert whose log-probability is NaN or plus infinity is broken: the others predict the token without it, as
if it had been impossible to that expert, and the caller is told, to restart it (:func:`drop`). Minus infinity
is a probability of 0 like any other.
Every row has the arithmetic that it would have alone.

The regret: T tokens cost the mixture at most ln K + ln(T + 1) nats more than any one of its experts, whatever
the probabilities (docs/adaptation.md §4). Tokens at which an expert was broken count as impossible to it.
Shape suffixes: S tokens of a segment, N sessions, K experts, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_TOLERANCE = 1e-9


class MixtureState(NamedTuple):
    """The mixtures of N sessions: values, never written to.

    weights_NK   the probability pi of each expert, float64, above 0; those of a session sum to 1
    tokens_N     tokens read since the weights were equal, int64: the t of the next token
    """

    weights_NK: Tensor
    tokens_N: Tensor

    @classmethod
    def start(cls, sessions: int, experts: int, device: torch.device | str | None = None) -> "MixtureState":
        """Equal weights before any token. Raises ValueError without an expert."""
        if experts < 1:
            raise ValueError(f"experts must be at least 1, not {experts}")
        weights_NK = torch.full((sessions, experts), 1.0 / experts, dtype=torch.float64, device=device)
        return cls(weights_NK, torch.zeros(sessions, dtype=torch.int64, device=device))

    @classmethod
    def concatenate(cls, states: Sequence["MixtureState"]) -> "MixtureState":
        """The sessions of all ``states``, at least one, in their order."""
        return cls(
            torch.cat([state.weights_NK for state in states]),
            torch.cat([state.tokens_N for state in states]),
        )

    def sessions(self) -> list["MixtureState"]:
        """Each session alone, as copies: a view would keep all of them alive."""
        pairs = zip(torch.split(self.weights_NK, 1), torch.split(self.tokens_N, 1), strict=True)
        return [MixtureState(weights_1K.clone(), tokens_1.clone()) for weights_1K, tokens_1 in pairs]

    @property
    def experts(self) -> int:
        """K."""
        return self.weights_NK.shape[1]

    def rows(self, index: Tensor | slice) -> "MixtureState":
        """The chosen sessions."""
        return MixtureState(self.weights_NK[index], self.tokens_N[index])


class MixtureRead(NamedTuple):
    """What reading tokens gave.

    weights_SNK   the probability of each expert before each token
    logprobs_SN   of the mixture, natural, float64; 0 where a row is frozen, NaN where it was lost
    state         the mixtures after the tokens
    broken_NK     experts whose log-probability of some token was NaN or plus infinity
    lost_N        sessions of which all experts were broken at one token. That token was not read, weights
                  and count are as before it; what was read cannot be used: an error of the session's state
    """

    weights_SNK: Tensor
    logprobs_SN: Tensor
    state: MixtureState
    broken_NK: Tensor
    lost_N: Tensor


class _Evidence(NamedTuple):
    """What the experts said: their best log-probability, and all likelihoods relative to it."""

    best_SN: Tensor
    likelihoods_SNK: Tensor
    usable_SNK: Tensor


def read(state: MixtureState, logprobs_SNK: Tensor, active_SN: Tensor | None = None) -> MixtureRead:
    """Score the tokens of a segment with the mixture, and let the weights follow them.

    ``logprobs_SNK`` are the experts' natural log-probabilities of the tokens that came, in any float dtype.
    Where ``active_SN`` (bool; None is everywhere) is false a row is frozen and its log-probabilities are not
    looked at. Cutting a stream into other segments changes nothing. When no expert gives a token any chance
    its score is minus infinity and it says nothing about the experts that are not broken. Raises ValueError
    for shapes that do not belong together.
    """
    active_SN = _active(state, logprobs_SNK, active_SN)
    evidence = _evidence(logprobs_SNK)
    known_SN = evidence.usable_SNK.any(-1)
    reads_SN = active_SN & known_SN
    times_SN = state.tokens_N + reads_SN.cumsum(0) - reads_SN.long()
    weights_SNK, weights_NK, totals_SN = _follow(
        state.weights_NK, evidence.likelihoods_SNK, reads_SN, times_SN
    )
    silent_SN = ~evidence.usable_SNK.all(-1)
    spoken_SN = _total(weights_SNK * evidence.usable_SNK)[..., 0].masked_fill(~silent_SN, 1.0)
    logprobs_SN = (evidence.best_SN + (totals_SN / spoken_SN).log()).masked_fill(~known_SN, math.nan)
    return MixtureRead(
        weights_SNK=weights_SNK,
        logprobs_SN=logprobs_SN.masked_fill(~active_SN, 0.0),
        state=MixtureState(weights_NK, state.tokens_N + reads_SN.sum(0)),
        broken_NK=(active_SN[..., None] & ~evidence.usable_SNK).any(0),
        lost_N=(active_SN & ~known_SN).any(0),
    )


def drop(state: MixtureState, dropped_NK: Tensor) -> MixtureState:
    """The mixtures after the dropped experts have started anew, of which in each session one is left.

    Their weights become 0, and then what a share gives: 1 / ((t + 1) K), as if the last of t tokens had been
    impossible to them. No other weight becomes smaller, so the bound on the regret against the other
    experts stays. Before any token all weights are equal, and remain so.
    """
    weights_NK, tokens_N = state
    least_N1 = 1.0 / ((tokens_N[:, None].double() + 1.0) * state.experts)
    left_NK = weights_NK.masked_fill(dropped_NK, 0.0)
    given_N1 = dropped_NK.sum(1, keepdim=True) * least_N1
    kept_NK = left_NK * ((1.0 - given_N1) / _total(left_NK))
    changed_NK = torch.where(dropped_NK, least_N1, kept_NK.maximum(least_N1))
    return MixtureState(torch.where(dropped_NK.any(1, keepdim=True), changed_NK, weights_NK), tokens_N)


def mix(weights_NK: Tensor, log_probs_NKV: Tensor) -> Tensor:
    """The mixture's log-probabilities ``[N, V]`` of the next token, float64: what :func:`read` would score.

    The weights are those of a :class:`MixtureState`. A broken expert does not speak: the others are mixed as
    if they were all. A session whose experts are all broken gets a row of NaN.
    """
    broken_NK = broken_experts(log_probs_NKV)
    weights_NK = _speaking(weights_NK, ~broken_NK)
    log_probs_NKV = log_probs_NKV.masked_fill(broken_NK[..., None], -math.inf)
    best_NV = log_probs_NKV.amax(1).double()
    best_NV.masked_fill_(best_NV == -math.inf, 0.0)
    total_NV = torch.zeros_like(best_NV)
    # One expert at a time: over a large vocabulary all of them in float64 would be most of the memory.
    for log_probs, weights_N in zip(log_probs_NKV.unbind(1), weights_NK.unbind(1), strict=True):
        total_NV += (log_probs.double() - best_NV).exp_().mul_(weights_N[:, None])
    return total_NV.log_().add_(best_NV).masked_fill_(broken_NK.all(1)[:, None], math.nan)


def broken_experts(log_probs_NKV: Tensor) -> Tensor:
    """Which experts' next-token distributions ``[N, K]`` hold NaN or plus infinity."""
    return ~(log_probs_NKV.amax(-1) < math.inf)


def check_state(state: MixtureState) -> None:
    """Raise ValueError, naming what is wrong, unless ``state`` is one that :func:`read` could have given.

    Weights must be finite and sum to 1 within 1e-9, and none may be below 1 / ((t + 1) K), which is what
    the share of the last of t tokens left: 1/K before the first.
    """
    weights_NK, tokens_N = state
    if weights_NK.dim() != 2 or weights_NK.shape[1] < 1 or tokens_N.shape != weights_NK.shape[:1]:
        raise ValueError(f"weights are {list(weights_NK.shape)}, tokens are {list(tokens_N.shape)}")
    if weights_NK.dtype != torch.float64 or tokens_N.dtype != torch.int64:
        raise ValueError(f"weights are {weights_NK.dtype}, tokens are {tokens_N.dtype}")
    for row, (weights, tokens) in enumerate(zip(weights_NK.tolist(), tokens_N.tolist(), strict=True)):
        _check_session(f"session {row}", weights, tokens)


def _check_session(name: str, weights: Sequence[float], tokens: int) -> None:
    if tokens < 0:
        raise ValueError(f"tokens of {name} must be at least 0, not {tokens}")
    floor = (1.0 - _TOLERANCE) / ((tokens + 1) * len(weights))
    for expert, weight in enumerate(weights):
        if not math.isfinite(weight):
            raise ValueError(f"weight {expert} of {name} is not finite: {weight}")
        if weight < floor:
            raise ValueError(f"weight {expert} of {name} is {weight}, too small after {tokens} tokens")
    if abs(math.fsum(weights) - 1.0) > _TOLERANCE:
        raise ValueError(f"weights of {name} sum to {math.fsum(weights)}, not to 1")


def _active(state: MixtureState, logprobs_SNK: Tensor, active_SN: Tensor | None) -> Tensor:
    shape = tuple(state.weights_NK.shape)
    if logprobs_SNK.dim() != 3 or tuple(logprobs_SNK.shape[1:]) != shape:
        raise ValueError(f"logprobs must be [S, {shape[0]}, {shape[1]}], not {list(logprobs_SNK.shape)}")
    if active_SN is None:
        return torch.ones(logprobs_SNK.shape[:2], dtype=torch.bool, device=logprobs_SNK.device)
    if active_SN.shape != logprobs_SNK.shape[:2] or active_SN.dtype != torch.bool:
        wanted = f"bool {list(logprobs_SNK.shape[:2])}"
        raise ValueError(f"active must be {wanted}, not {active_SN.dtype} {list(active_SN.shape)}")
    return active_SN


def _evidence(logprobs_SNK: Tensor) -> _Evidence:
    usable_SNK = logprobs_SNK < math.inf  # NaN compares false
    logprobs_SNK = logprobs_SNK.double().masked_fill(~usable_SNK, -math.inf)
    best_SN = logprobs_SNK.amax(-1)
    impossible_SN = best_SN == -math.inf
    relative_SNK = logprobs_SNK - best_SN.masked_fill(impossible_SN, 0.0)[..., None]
    # Where all probabilities are 0, relative ones would be 0/0: the token tells usable experts nothing apart.
    likelihoods_SNK = torch.where(impossible_SN[..., None], usable_SNK.double(), relative_SNK.exp())
    return _Evidence(best_SN, likelihoods_SNK, usable_SNK)


def _follow(
    weights_NK: Tensor, likelihoods_SNK: Tensor, reads_SN: Tensor, times_SN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights before each token and after them all, and the mixture's likelihood of each."""
    shares_SN1 = 1.0 / (times_SN[..., None].double() + 2.0)
    # In this form rounding never takes a weight below a_t / K, and a single expert keeps exactly 1.
    kept_SN1, given_SN1 = 1.0 - shares_SN1, shares_SN1 / weights_NK.shape[1]
    totals_SN1, reads_SN1 = torch.empty_like(shares_SN1), reads_SN[..., None]
    weights_SNK = torch.empty_like(likelihoods_SNK)
    for token, likelihoods_NK in enumerate(likelihoods_SNK):
        weights_SNK[token] = weights_NK
        joint_NK = weights_NK * likelihoods_NK
        total_N1 = totals_SN1[token] = _total(joint_NK)
        shared_NK = joint_NK / total_N1 * kept_SN1[token] + given_SN1[token]
        weights_NK = torch.where(reads_SN1[token], shared_NK, weights_NK)
    return weights_SNK, weights_NK, totals_SN1[..., 0]


def _speaking(weights_NK: Tensor, usable_NK: Tensor) -> Tensor:
    """Weights of those that are usable alone, where some are not."""
    spoken_NK = weights_NK * usable_NK
    return torch.where(usable_NK.all(1, keepdim=True), weights_NK, spoken_NK / _total(spoken_NK))


def _total(values_NK: Tensor) -> Tensor:
    """The sum over the last dimension, which stays: added up in its order, however many rows there are."""
    first, *more = torch.split(values_NK, 1, -1)
    for value in more:
        first = first + value
    return first

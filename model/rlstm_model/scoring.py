"""Scores of given tokens: log-probability, rank, entropy, alternatives.

Everything works in chunks, so that memory does not grow with the text: no T x V matrix ever exists. All
numbers are those of the raw distribution, in nats; sums over a text are taken in float64.
Shape suffixes: N tokens of one text, T time, H hidden units, V vocabulary, K alternatives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlstm_model.language_model import LanguageModel
from rlstm_model.state import State
from rlstm_model.vocab import Encoded, InvalidToken, Vocab

LOGPROB_FLOOR = -9999.0

_LOGITS_AT_ONCE = 1 << 21


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenScores:
    """Columns over N tokens, on the CPU.

    ``logprobs`` float32 ``[N]``: finite, at most 0, never below the floor; ``ranks`` int64 ``[N]``: 1 is
    the most probable token, ties go to the lower id; ``entropies`` float32 ``[N]`` of the distribution
    that the token was scored against; ``top_ids`` and ``top_logprobs`` ``[N, K]``, best first, or None.
    Where only log-probabilities were asked for, ranks are 0 and entropies NaN.
    """

    logprobs: Tensor
    ranks: Tensor
    entropies: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None

    def __len__(self) -> int:
        return self.logprobs.shape[0]

    @property
    def total(self) -> float:
        """The log-probability of all tokens together."""
        return float(self.logprobs.double().sum())

    @property
    def columns(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}

    def rows(self, index: slice) -> "TokenScores":
        """The chosen tokens."""
        return TokenScores(**{name: column[index] for name, column in self.columns.items()})

    def split(self, lengths: list[int]) -> list["TokenScores"]:
        """So many tokens after so many, as views."""
        names = self.columns
        parts = zip(*(torch.split(column, lengths) for column in names.values()), strict=True)
        return [TokenScores(**dict(zip(names, columns, strict=True))) for columns in parts]

    @staticmethod
    def concatenate(parts: Sequence["TokenScores"]) -> "TokenScores":
        """The parts one after the other. Raises ValueError when there is none."""
        if not parts:
            raise ValueError("there are no scores to concatenate")
        names = parts[0].columns
        return TokenScores(**{name: torch.cat([part.columns[name] for part in parts]) for name in names})


def score_logits(
    logits_NV: Tensor, targets_N: Tensor, top: int = 0, *, logprobs_only: bool = False
) -> TokenScores:
    """Scores of ``targets_N`` under the distributions of ``logits_NV``.

    ``logprobs_only`` leaves out what takes most of the time over a large vocabulary: ranks, entropies and
    alternatives. Raises ArithmeticError when a distribution is none (a NaN or a positive infinity among its
    logits).
    """
    return score_log_probs(torch.log_softmax(logits_NV, -1), targets_N, top, logprobs_only=logprobs_only)


def score_log_probs(
    log_probs_NV: Tensor, targets_N: Tensor, top: int = 0, *, logprobs_only: bool = False
) -> TokenScores:
    """The same for natural log-probabilities. Raises ArithmeticError when that of a target is NaN."""
    # A bad logit makes its whole row NaN, so the targets' column tells.
    target_N1 = log_probs_NV.gather(1, targets_N[:, None]).float().clamp(LOGPROB_FLOOR, 0.0)
    if bool(target_N1.isnan().any()):
        raise ArithmeticError("the model's output is not finite")
    if logprobs_only:
        return _of_logprobs(target_N1[:, 0].cpu())
    log_probs_NV = log_probs_NV.float().clamp(LOGPROB_FLOOR, 0.0)
    ids_V = torch.arange(log_probs_NV.shape[1], device=log_probs_NV.device)
    ahead_NV = (log_probs_NV > target_N1) | ((log_probs_NV == target_N1) & (ids_V < targets_N[:, None]))
    top_ids, top_logprobs = _alternatives(log_probs_NV, top) if top else (None, None)
    return TokenScores(
        logprobs=target_N1[:, 0].cpu(),
        ranks=(ahead_NV.sum(1) + 1).cpu(),
        entropies=torch.special.entr(log_probs_NV.exp()).sum(1).cpu(),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def score_features(
    model: LanguageModel,
    features_NH: Tensor,
    targets_N: Tensor,
    top: int = 0,
    *,
    temperature: float = 1.0,
    logprobs_only: bool = False,
) -> TokenScores:
    """Scores of ``targets_N`` under the model's distributions at ``features_NH``.

    ``temperature`` multiplies the logits; ``logprobs_only`` as in :func:`score_logits`.
    """
    scores = _unwritten(model, len(targets_N), top)
    rows = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    for start in range(0, len(targets_N), rows):
        part = slice(start, start + rows)
        logits_NV = model.logits(features_NH[part], temperature)
        _write(scores, start, score_logits(logits_NV, targets_N[part], top, logprobs_only=logprobs_only))
    return scores


@torch.no_grad()
def score(
    model: LanguageModel,
    ids_N: Sequence[int] | Tensor,
    *,
    state: State | None,
    last: int,
    top: int = 0,
    chunk: int = 256,
    temperature: float = 1.0,
    logprobs_only: bool = False,
) -> tuple[TokenScores, State]:
    """Scores of a text, and the state before its last token was read (that token is the next ``last``).

    The model reads ``last`` (which ``state``, of one row, has not seen; None is the start of all text) and
    then all tokens but the final one, ``chunk`` tokens at once. ``temperature`` and ``logprobs_only`` as in
    :func:`score_features`. Raises ValueError without tokens, InvalidToken for an id outside
    the vocabulary.
    """
    targets_N = _checked(model, ids_N)
    inputs_N = _inputs(model, last, targets_N)
    state = model.initial_state(1) if state is None else state
    scores = _unwritten(model, len(targets_N), top)
    for start in range(0, len(targets_N), chunk):
        window = slice(start, start + chunk)
        features_T1H, state = model(inputs_N[window, None], state)
        part = score_features(
            model,
            features_T1H[:, 0],
            targets_N[window],
            top,
            temperature=temperature,
            logprobs_only=logprobs_only,
        )
        _write(scores, start, part)
    return scores, state


@torch.no_grad()
def next_log_probs(model: LanguageModel, last: int, state: State) -> tuple[Tensor, State]:
    """Read ``last`` in ``state`` (one row). Returns the next token's log-probabilities ``[V]`` and the state.

    Whether the distribution is one is not looked at here: sampling refuses what is not finite.
    """
    features_1H, state = model.step(torch.tensor([last], device=state.h.device), state)
    return model.log_probs(features_1H)[0], state


@dataclass(frozen=True, kw_only=True, eq=False)
class TextScores:
    """A text's tokens with their scores and spans, and its totals."""

    encoded: Encoded
    tokens: TokenScores
    bytes: int
    words: int

    @property
    def logprob(self) -> float:
        """The natural log-probability of the text."""
        return self.tokens.total

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of the text's UTF-8."""
        return -self.logprob / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """Per token; finite, because log-probabilities have a floor (it is cut at e^700)."""
        return math.exp(min(-self.logprob / len(self.tokens), 700.0))


def score_text(model: LanguageModel, vocab: Vocab, text: str, top: int = 0) -> TextScores:
    """Scores of ``text`` as the beginning of all text: its first token follows ``bos``.

    Raises ValueError when the text holds no token, InvalidText for a lone surrogate.
    """
    encoded = vocab.encode(text)
    tokens, _ = score(model, encoded.ids, state=None, last=vocab.bos_id, top=top)
    return TextScores(encoded=encoded, tokens=tokens, bytes=len(text.encode()), words=len(text.split()))


def _checked(model: LanguageModel, ids_N: Sequence[int] | Tensor) -> Tensor:
    # An id that reached an embedding on a GPU would end the process there, not raise.
    ids_N = torch.as_tensor(ids_N, dtype=torch.int64)
    if ids_N.numel() == 0:
        raise ValueError("there are no tokens to score")
    outside = (ids_N < 0) | (ids_N >= model.config.vocab_size)
    if bool(outside.any()):
        index = int(outside.nonzero()[0])
        raise InvalidToken(index, int(ids_N[index]))
    return ids_N.to(model.embedding.input.device)


def _inputs(model: LanguageModel, last: int, targets_N: Tensor) -> Tensor:
    return torch.cat((_checked(model, (last,)), targets_N[:-1]))


def _of_logprobs(logprobs_N: Tensor) -> TokenScores:
    length = len(logprobs_N)
    return TokenScores(
        logprobs=logprobs_N,
        ranks=torch.zeros(length, dtype=torch.int64),
        entropies=torch.full((length,), math.nan),
    )


def _unwritten(model: LanguageModel, length: int, top: int) -> TokenScores:
    # One piece for the whole text: small pieces kept from every chunk would lie between the chunks' large
    # temporaries, keep the allocator from using their room again, and memory would grow with the text.
    width = min(top, model.config.vocab_size)
    return TokenScores(
        logprobs=torch.empty(length),
        ranks=torch.empty(length, dtype=torch.int64),
        entropies=torch.empty(length),
        top_ids=torch.empty(length, width, dtype=torch.int64) if width else None,
        top_logprobs=torch.empty(length, width) if width else None,
    )


def _write(scores: TokenScores, start: int, part: TokenScores) -> None:
    for name, column in part.columns.items():
        scores.columns[name][start : start + len(part)].copy_(column)


def _alternatives(log_probs_NV: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The best ``top`` ids and their log-probabilities; ties go to the lower id, as in the ranks.

    topk leaves the order of ties open. Two tied log-probabilities are at most -ln 2, and a factor within
    2^-26 of 1 is below a float32's resolution but not a float64's, so it orders ties and nothing else.
    """
    ids_V = torch.arange(log_probs_NV.shape[1], device=log_probs_NV.device, dtype=torch.float64)
    keys_NV = log_probs_NV.double() * (1 + ids_V * 2.0**-50)
    top_ids_NK = keys_NV.topk(min(top, log_probs_NV.shape[1]), 1).indices
    return top_ids_NK.cpu(), log_probs_NV.gather(1, top_ids_NK).cpu()

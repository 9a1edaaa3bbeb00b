"""Inference after a stream: candidates are scored and tokens chosen, and the stream stays as it is.

Shape suffixes: T tokens, K experts, V vocabulary, P fast weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import AdaptedState, Cursor
from rlstm_model.adaptation.experts import mix
from rlstm_model.adaptation.fast_weights import FastWeights
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores, next_log_probs, score_log_probs
from rlstm_model.state import State
from rlstm_model.vocab import check_ids

CHUNK = 64
"""Tokens that are read at once."""


@dataclass(frozen=True, eq=False)
class Next:
    """The next token's log-probabilities ``[V]``, and where the text goes on once it is chosen."""

    log_probs_V: Tensor
    experts_1KV: Tensor
    state: State
    before: Cursor

    def after(self, token: int) -> Cursor:
        """The place after ``token``; the mixture's weights follow it as they follow text."""
        weights = self.before.mixture
        if weights is not None:
            weights = mixture.read(weights, self.experts_1KV[None, :, :, token]).state
        return Cursor(self.state, token, weights)


def static_next(model: LanguageModel, cursor: Cursor) -> Next:
    """The same for a text that the model reads as loaded, one row."""
    log_probs_V, state = next_log_probs(model, cursor.last, cursor.state)
    return Next(log_probs_V, log_probs_V[None, None], state, cursor)


class Reader:
    """A stream's experts at one moment."""

    def __init__(self, fast_weights: FastWeights, state: AdaptedState, temperature: float) -> None:
        self._fast_weights = fast_weights
        self._temperature = temperature
        lineup = state.lineup
        self._delta_KP = state.delta_KP
        if state.delta_KP is not None and lineup.experts > 1:
            self._delta_KP = torch.cat((fast_weights.zero(1), state.delta_KP))
        self.cursor = Cursor(state.now.state.rows(lineup.mixed), state.now.last, state.mixture)

    def score(self, cursor: Cursor, ids: Sequence[int], top: int = 0) -> tuple[TokenScores, Cursor]:
        """Scores of ``ids`` (at least one) after ``cursor``, and the cursor after them.

        Raises InvalidToken, and ArithmeticError when the model's output is not finite.
        """
        ids = check_ids(ids, self._fast_weights.model.config.vocab_size)
        parts = []
        for start in range(0, len(ids), CHUNK):
            scores, cursor = self._score(cursor, ids[start : start + CHUNK], top)
            parts.append(scores)
        return TokenScores.concatenate(parts), cursor

    def next(self, cursor: Cursor) -> Next:
        """Read the cursor's token and predict the one after it.

        Whether the distribution is one is not looked at here: sampling refuses what is not finite.
        """
        experts = cursor.state.batch
        ids_K = torch.full((experts,), cursor.last, device=cursor.state.h.device)
        logits_KV, state = self._fast_weights.step(
            self._delta_KP, ids_K, cursor.state, temperature=self._temperature
        )
        experts_1KV = torch.log_softmax(logits_KV, -1)[None]
        log_probs_V = (
            experts_1KV[0, 0] if cursor.mixture is None else mixture.mix(cursor.mixture, experts_1KV)[0]
        )
        return Next(log_probs_V, experts_1KV, state, cursor)

    def _score(self, cursor: Cursor, ids: Sequence[int], top: int) -> tuple[TokenScores, Cursor]:
        device, experts = cursor.state.h.device, cursor.state.batch
        text_T = torch.tensor((cursor.last, *ids), device=device)
        logits_TKV, state = self._fast_weights.read(
            self._delta_KP,
            text_T[:-1, None].expand(-1, experts),
            cursor.state,
            temperature=self._temperature,
        )
        log_probs_TKV = torch.log_softmax(logits_TKV, -1)
        own_TK = log_probs_TKV.gather(-1, text_T[1:, None, None].expand(-1, experts, 1))[..., 0]
        mixed_TV, weights = mix(log_probs_TKV, own_TK, cursor.mixture)
        return score_log_probs(mixed_TV, text_T[1:], top), Cursor(state, int(ids[-1]), weights)

"""Inference after a stream: candidates are scored and tokens chosen, and the stream stays as it is.

Shape suffixes: K experts, V vocabulary.
"""

from collections.abc import Sequence

from rlstm_model.adaptation.adapted_state import Cursor
from rlstm_model.adaptation.batch_items import DecodeStep, FrozenExperts, NextToken, ScoreChunk, ScoredChunk
from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.adaptation.fast_weights import FrozenWeights
from rlstm_model.adaptation.graphs import graphed_reading
from rlstm_model.adaptation.rows import Rows
from rlstm_model.adaptation.tasks import ELEMENTS_AT_ONCE
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores, next_log_probs
from rlstm_model.vocab import check_ids

__all__ = ["CHUNK", "NextToken", "Reader", "frozen_next", "frozen_reader"]

CHUNK = 64
"""Tokens that are read at once; fewer where the vocabulary is large."""


class Reader(FrozenExperts):
    """A stream's experts at one moment, or the weights as loaded."""

    def score(self, cursor: Cursor, ids: Sequence[int], top: int = 0) -> tuple[TokenScores, Cursor]:
        """Scores of ``ids`` (at least one) after ``cursor``, and the cursor after them.

        Raises InvalidToken, and ArithmeticError when no expert computed a distribution of some token.
        """
        vocabulary = self.rows.weights.model.config.vocab_size
        ids = check_ids(ids, vocabulary)
        chunk = max(1, min(CHUNK, ELEMENTS_AT_ONCE // (vocabulary * cursor.state.batch)))
        parts = []
        for start in range(0, len(ids), chunk):
            (result,) = run_batch([ScoreChunk(self, cursor, tuple(ids[start : start + chunk]), top)])
            if not isinstance(result, ScoredChunk):
                raise result if isinstance(result, Exception) else TypeError(type(result))
            parts.append(result.scores)
            cursor = result.cursor
        return TokenScores.concatenate(parts), cursor

    def next(self, cursor: Cursor) -> NextToken:
        """Read the cursor's token and predict the one after it.

        Whether the distribution is one is not looked at here: sampling refuses what is not finite.
        """
        (result,) = run_batch([DecodeStep(self, cursor)])
        if not isinstance(result, NextToken):
            raise result if isinstance(result, Exception) else TypeError(type(result))
        return result


def frozen_reader(model: LanguageModel, bos_id: int, temperature: float = 1.0) -> Reader:
    """Reads with the weights as loaded, from before any text; ``temperature`` multiplies the logits.

    On a CUDA device by recorded graphs, which the reader keeps: it is for many texts.
    """
    weights = graphed_reading(FrozenWeights(model))
    return Reader(Rows(weights, temperature), None, Cursor(model.initial_state(1), bos_id))


def frozen_next(model: LanguageModel, cursor: Cursor) -> NextToken:
    """The next token of a text that the model reads as loaded, alone: one row without padding."""
    log_probs_V, state = next_log_probs(model, cursor.last, cursor.state)
    return NextToken(log_probs_V, log_probs_V[None, None], state, cursor)

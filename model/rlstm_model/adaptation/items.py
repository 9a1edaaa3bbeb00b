"""What may be asked of a batch (:mod:`rlstm_model.adaptation.batch`), and what comes of it.

Shape suffixes: T tokens, V vocabulary, K experts that learn, P fast weights, R rows of a stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.backend import Backend
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.mixture import follow
from rlstm_model.adaptation.state import AdaptedState, Cursor
from rlstm_model.native import Window
from rlstm_model.native.memory import REACH, Memory, Mode
from rlstm_model.scores import Floats, TokenScores


@dataclass(frozen=True, eq=False)
class Learner:
    """A model under a calibration, without any stream of its own.

    slow_norm      of the model's weights as loaded, by which the norm of fast weights is measured
    logprobs_only  gives no ranks and entropies, which take longer than all else over a large vocabulary
    """

    backend: Backend
    calibration: Calibration
    slow_norm: float
    bos_id: int
    logprobs_only: bool = False

    @cached_property
    def segment(self) -> int:
        """S."""
        return self.calibration.config.segment


@dataclass(frozen=True, eq=False)
class ObserveChunk:
    """The next tokens of a stream: at least one, and none beyond the end of its segment.

    ``learn``: whether they may be learned from; ``top`` alternatives are wanted of each, or the whole
    ``distributions``; ``spaces``: the tokens that begin with white space, where their probability is wanted;
    ``reads``: what the rows gave that have read the token before a single one already.
    """

    state: AdaptedState
    ids: tuple[int, ...]
    learn: bool
    top: int
    learner: Learner
    distributions: bool = False
    spaces: NDArray[np.intp] | None = None
    reads: Sequence[Window] = ()

    @cached_property
    def ends(self) -> bool:
        """Whether the segment ends here: where no weights adapt every chunk is one."""
        at = self.state.position + len(self.ids)
        return not self.state.expert_config.rates or at % self.learner.segment == 0

    @cached_property
    def flags(self) -> tuple[bool, ...]:
        """Whether each token of the segment so far may be learned from."""
        return self.state.pending_learn + (self.learn,) * len(self.ids)

    @cached_property
    def learns(self) -> bool:
        """Whether a step is taken after these tokens."""
        idle = self.learner.calibration.idle or self.state.rate_scale == 0
        return self.ends and any(self.flags) and not idle and bool(self.state.expert_config.rates)


@dataclass(frozen=True, eq=False)
class FrozenExperts:
    """A stream's experts at one moment.

    delta_KP   fast weights of those that learn; None is zero for all
    cursor     where the stream was: the rows that are mixed, and with ``static`` the frozen baseline first
    static     whether that row's log-probabilities are wanted too
    logprobs_only  as in :class:`Learner`
    """

    backend: Backend
    delta_KP: NDArray[Any] | None
    cursor: Cursor
    static: bool = False
    logprobs_only: bool = False
    memory: Memory | None = None

    def mixed(self, reads: "Sequence[Window]", cursor: Cursor, ids: Sequence[int]) -> list[Floats]:
        """The log-probabilities that are mixed of the tokens: of the last rows, and of the memory."""
        experts = [
            read.log_probs_TV for read in reads[len(reads) - cursor.experts + (self.memory is not None) :]
        ]
        if self.memory is not None:
            experts.append(self.memory.mix(experts, ids, Mode.LOOK, cursor.context).log_probs_TV)
        return experts

    def context_after(self, cursor: Cursor, ids: Sequence[int]) -> tuple[int, ...]:
        """What a memory will see before the next token, beside its own."""
        return () if self.memory is None else (*cursor.context, *ids)[-REACH:]


@dataclass(frozen=True, eq=False)
class ScoreChunk:
    """Tokens to be scored after ``cursor``, at least one; nothing is learned. The rest as above."""

    reader: FrozenExperts
    cursor: Cursor
    ids: tuple[int, ...]
    top: int = 0
    distributions: bool = False
    spaces: NDArray[np.intp] | None = None


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """The cursor's token to be read, and the one after it to be predicted."""

    reader: FrozenExperts
    cursor: Cursor


BatchItem: TypeAlias = ObserveChunk | ScoreChunk | DecodeStep


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedChunk:
    """What the next tokens of a stream gave.

    scores           of the mixture, as the weights were before they saw these tokens
    static_logprobs  of the frozen baseline, float32; None where it is not carried
    log_probs_TV     what each token was scored against; None where it was not wanted
    updates          1 where a segment ended here and was learned from
    guards           what was kept from happening: "step_skipped", "projected", "restarted", once a row
    gradient_norms   of the rows whose segment ended here and was learned from, where they are finite
    """

    state: AdaptedState
    scores: TokenScores
    static_logprobs: Floats | None
    log_probs_TV: Floats | None = None
    updates: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()


class ScoredChunk(NamedTuple):
    """The scores of tokens, and the place after them; the rest as in :class:`ObservedChunk`."""

    scores: TokenScores
    cursor: Cursor
    static_logprobs: Floats | None = None
    log_probs_TV: Floats | None = None

    @staticmethod
    def concatenate(parts: "Sequence[ScoredChunk]") -> "ScoredChunk":
        """Scores of one text's pieces, one after the other. Raises ValueError when there is none."""
        scores = TokenScores.concatenate([part.scores for part in parts])
        static = [part.static_logprobs for part in parts if part.static_logprobs is not None]
        return ScoredChunk(scores, parts[-1].cursor, np.concatenate(static) if static else None)


@dataclass(frozen=True, eq=False)
class NextToken:
    """The next token's log-probabilities ``[V]``, and where the text goes on once it is chosen.

    Whether the distribution is one is not looked at: sampling refuses what is not finite.
    """

    log_probs_V: Floats
    experts: Sequence[Floats]
    reads: Sequence[Window]
    before: Cursor
    reader: FrozenExperts

    def after(self, token: int) -> Cursor:
        """The place after ``token``; the mixture's weights follow it as they follow text."""
        mixture = self.before.mixture
        if mixture is not None:
            _, mixture = follow(mixture, self.experts, (token,))
        context = self.reader.context_after(self.before, (token,))
        return Cursor(states_of(self.reads), token, mixture, context)


BatchResult: TypeAlias = ObservedChunk | ScoredChunk | NextToken | Exception


def states_of(reads: Sequence[Window]) -> Floats:
    """The states of all rows, after what they read."""
    return np.array([read.states_2U for read in reads])

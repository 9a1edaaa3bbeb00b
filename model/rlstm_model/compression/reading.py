"""A model that reads what is coded: in chunks on the way in, token by token on the way out."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol, TypeAlias, get_args

from rlstm_model.adaptation.evaluator import DynamicEvaluator, Reader
from rlstm_model.adaptation.items import NextToken, ObservedChunk, ScoredChunk
from rlstm_model.adaptation.state import Adapt
from rlstm_model.local import LocalModel
from rlstm_model.scores import Floats

Kind: TypeAlias = Literal["frozen"] | Adapt
"""What adapts to the file: nothing, or what a session of that kind has."""

KINDS: Final = ("frozen", *get_args(Adapt))

_EXPERTS: Final = {"weights": 2, "memory": 1, "both": 2}
"""As a session has them by default."""


class Reading(Protocol):
    """A text in progress. What ``next`` gives is, to the last bit, what ``read`` gives for that token."""

    def read(self, ids: Sequence[int]) -> Iterator[ObservedChunk | ScoredChunk]:
        """Scores and distributions of the next tokens, in chunks. Raises ArithmeticError."""

    def next(self) -> Floats:
        """Log-probabilities ``[V]`` of the next token."""

    def observe(self, token: int) -> None:
        """Read on."""


class FrozenReading:
    """By the weights as loaded."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._cursor = reader, reader.cursor
        self._next: NextToken | None = None

    def read(self, ids: Sequence[int]) -> Iterator[ScoredChunk]:
        """See :class:`Reading`."""
        for chunk in self._reader.chunks(self._cursor, ids, distributions=True):
            self._cursor = chunk.cursor
            yield chunk

    def next(self) -> Floats:
        """See :class:`Reading`."""
        self._next = self._reader.next(self._cursor)
        return self._next.log_probs_V

    def observe(self, token: int) -> None:
        """See :class:`Reading`."""
        following = self._next or self._reader.next(self._cursor)
        self._cursor, self._next = following.after(token), None


class AdaptiveReading:
    """By what adapts: scored first, and then learned from."""

    def __init__(self, evaluator: DynamicEvaluator, adapt: Adapt) -> None:
        self._evaluator = evaluator
        self._state = evaluator.start(experts=_EXPERTS[adapt], adapt=adapt)
        self._next: NextToken | None = None

    def read(self, ids: Sequence[int]) -> Iterator[ObservedChunk]:
        """See :class:`Reading`."""
        for chunk in self._evaluator.observe(self._state, ids, distributions=True):
            if "restarted" in chunk.guards:  # then how the text is cut tells where
                raise ArithmeticError("the model's fast weights are not finite")
            self._state = chunk.state
            yield chunk

    def next(self) -> Floats:
        """See :class:`Reading`."""
        self._next = self._evaluator.next(self._state)
        return self._next.log_probs_V

    def observe(self, token: int) -> None:
        """See :class:`Reading`."""
        following = self._next or self._evaluator.next(self._state)
        self._state, self._next = self._evaluator.follow(self._state, following, token), None


def reading(model: LocalModel, kind: Kind) -> Reading:
    """From the beginning of all text.

    Raises CheckpointError, CalibrationError, and ValueError, where the model cannot adapt so.
    """
    return FrozenReading(model.reader) if kind == "frozen" else AdaptiveReading(model.evaluator, kind)

"""A model that reads what is coded: in chunks on the way in, token by token on the way out."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from rlstm_model.adaptation.items import NextToken, ObservedChunk, ScoredChunk
from rlstm_model.adaptation.state import Adapt, Cursor
from rlstm_model.local import LocalModel
from rlstm_model.scores import Floats

Kind: TypeAlias = Literal["frozen"] | Adapt
"""What adapts to the file: nothing, or what a session of that kind has."""

KINDS: Final = ("frozen", *get_args(Adapt))

_EXPERTS: Final = {"weights": 2, "memory": 1, "both": 2}
"""As a session has them by default."""


class Reading:
    """A text in progress, by the weights as loaded or by what adapts: scored first, and then learned from.

    What ``next`` gives is, to the last bit, what ``read`` gives for that token.
    """

    def __init__(self, model: LocalModel, kind: Kind) -> None:
        """Begin all text. Raises CheckpointError, CalibrationError, ValueError where it cannot adapt so."""
        self._reader: Any = model.reader if kind == "frozen" else model.evaluator
        self._place: Any = (
            model.reader.cursor
            if kind == "frozen"
            else model.evaluator.start(experts=_EXPERTS[kind], adapt=kind)
        )
        self._next: NextToken | None = None

    def read(self, ids: Sequence[int]) -> Iterator[ObservedChunk | ScoredChunk]:
        """Scores and distributions of the next tokens, in chunks. Raises ArithmeticError."""
        frozen = isinstance(self._place, Cursor)
        read = self._reader.chunks if frozen else self._reader.observe
        for chunk in read(self._place, ids, distributions=True):
            if not frozen and "restarted" in chunk.guards:  # then how the text is cut tells where
                raise ArithmeticError("the model's fast weights are not finite")
            self._place = chunk.cursor if frozen else chunk.state
            yield chunk

    def next(self) -> Floats:
        """Log-probabilities ``[V]`` of the next token."""
        self._next = self._reader.next(self._place)
        return self._next.log_probs_V

    def observe(self, token: int) -> None:
        """Read on."""
        following = self._next or self._reader.next(self._place)
        if isinstance(self._place, Cursor):
            self._place = following.after(token)
        else:
            self._place = self._reader.follow(self._place, following, token)
        self._next = None

"""What a session's state is in the simulation: a fold over its operations, in whole numbers.

It stands where the model's arithmetic stands, with the same shape: tokens are scored as the weights are, and
learned from when a segment of the stream's absolute grid ends. One token more, less or elsewhere, and
everything after it differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlstm_model.adaptation.loss_guard import LossGuard

SEGMENT: Final = 4
MODULUS: Final = 1_048_573
"""A prime below 2**20, so that every value is exact in float32."""


def step(value: int, token: int, flag: int = 0) -> int:
    """A value after one more token."""
    return (value * 69_069 + 2 * token + flag + 1) % MODULUS


def logprob(value: int, learned: int, token: int) -> float:
    """The score of `token` after text of this value, by weights of that: exact in float32, below 0."""
    return -((value * 31 + learned * 17 + token * 7) % 512 + 1) / 64


def static_logprob(value: int, token: int) -> float:
    """The same by weights that never learned."""
    return logprob(value, 5, token)


def weights(value: int, learned: int, size: int) -> list[int]:
    """How probable each token is to be the next one, before they are made to sum to 1."""
    return [1 + ((value * 31 + learned * 17 + token * 7) % 16) ** 2 for token in range(size)]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A stream: its text before the newest token (`read`), that token, and what was learned.

    pending  the tokens of the unfinished segment, and whether each may be learned from
    watch    over it, where one expert learns beside the static weights
    """

    last: int
    read: int = 0
    learned: int = 0
    position: int = 0
    pending: tuple[tuple[int, bool], ...] = ()
    watch: LossGuard | None = None

    @property
    def value(self) -> int:
        """The text, all of it."""
        return step(self.read, self.last)

    def after(self, ids: Sequence[int], *, learn: bool) -> "tuple[Fold, list[float]]":
        """The stream after more tokens, and their scores: a part of a segment at a time."""
        fold, scores = self, []
        while len(scores) < len(ids):
            room = SEGMENT - fold.position % SEGMENT
            fold, own = fold._part(ids[len(scores) : len(scores) + room], learn=learn)
            scores += own
        return fold, scores

    def _part(self, ids: Sequence[int], *, learn: bool) -> "tuple[Fold, list[float]]":
        watch, value, scores, static = self.watch, self.value, [], []
        learn = learn and (watch is None or not watch.frozen)
        read, last = self.read, self.last
        for token in ids:
            scores.append(logprob(value, self.learned, token))
            static.append(static_logprob(value, token))
            read, last, value = value, token, step(value, token)
        pending = (*self.pending, *((token, learn) for token in ids))
        position, learned = self.position + len(ids), self.learned
        ends = position % SEGMENT == 0
        if ends:
            learned, pending = _learned(learned, pending), ()
        lost = False
        if watch is not None:
            watch, lost, _ = watch.after(scores, static, ends=ends)
        fold = Fold(last=last, read=read, learned=learned, position=position, pending=pending, watch=watch)
        return (replace(fold, learned=0, pending=_unlearned(pending)) if lost else fold), scores

    def scores(self, ids: Sequence[int]) -> list[float]:
        """The scores of tokens that are not read into the stream."""
        value, scores = self.value, []
        for token in ids:
            scores.append(logprob(value, self.learned, token))
            value = step(value, token)
        return scores

    def reset(self, first: int, *, fast_weights: bool, recurrent: bool) -> "Fold":
        """The stream after forgetting; `first` is the token that stands before all text."""
        fold = self
        if recurrent:
            fold = replace(fold, read=0, last=first, pending=())
        if fast_weights:
            watch = None if fold.watch is None else LossGuard()
            fold = replace(fold, learned=0, pending=_unlearned(fold.pending), watch=watch)
        return fold


def _unlearned(pending: Sequence[tuple[int, bool]]) -> tuple[tuple[int, bool], ...]:
    return tuple((token, False) for token, _ in pending)


def _learned(learned: int, pending: Sequence[tuple[int, bool]]) -> int:
    if not any(learn for _, learn in pending):
        return learned
    for token, learn in pending:
        learned = step(learned, token, int(learn))
    return learned

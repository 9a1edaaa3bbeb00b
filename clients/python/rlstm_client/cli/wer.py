"""Word errors of choices among candidates, and the weights by which the fewest are made. Needs jiwer."""

import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

RESAMPLES: Final = 2_000
_STEPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_FINER: Final = (0.8, 0.9, 1.1, 1.25)


class Weights(NamedTuple):
    """What a candidate's log-probabilities weigh (nats), to what was learned and as loaded, and a word."""

    alpha: float = 1.0
    static_alpha: float = 0.0
    beta: float = 0.0


class Costs(NamedTuple):
    """A candidate: the recogniser's own score, both log-probabilities in nats, and its number of words."""

    given: float
    logprob: float
    static_logprob: float
    words: int

    def score(self, weights: Weights) -> float:
        """The sum by which it is ranked."""
        language = weights.alpha * self.logprob + weights.static_alpha * self.static_logprob
        return self.given + language + weights.beta * self.words

    def static(self) -> "Costs":
        """The same where nothing was learned."""
        return self._replace(logprob=self.static_logprob)


class Errors(NamedTuple):
    """Words that are wrong in a text, of so many in its reference."""

    wrong: int
    words: int


Judged = tuple[Sequence[Costs], Sequence[Errors]]
"""A list whose reference is known: its candidates, and their errors."""


def order(candidates: Sequence[Costs], weights: Weights) -> list[int]:
    """The places of candidates, the best first; equal ones stay in their order."""
    scores = [candidate.score(weights) for candidate in candidates]
    return sorted(range(len(scores)), key=lambda place: -scores[place])


def errors_of(texts: Sequence[str], reference: str) -> list[Errors]:
    """Count the fewest words to insert, delete or replace in each text to come to the reference."""
    import jiwer

    found = jiwer.process_words([reference] * len(texts), list(texts))
    words = len(reference.split())
    return [
        Errors(
            sum(
                max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx)
                for part in parts
                if part.type != "equal"
            ),
            words,
        )
        for parts in found.alignments
    ]


def rate(errors: Iterable[Errors]) -> float:
    """The word error rate of all together."""
    wrong, words = map(sum, zip(*errors, strict=True))
    return wrong / max(words, 1)


def interval(errors: Sequence[Errors]) -> tuple[float, float]:
    """Bounds of 95 % of the rates of as many utterances drawn from these, with replacement."""
    draw = random.Random(0)
    rates = sorted(rate(draw.choices(errors, k=len(errors))) for _ in range(RESAMPLES))
    return rates[RESAMPLES // 40], rates[-RESAMPLES // 40 - 1]


def tuned(lists: Sequence[Judged]) -> Weights:
    """Find weights by which the fewest word errors are made: one weight at a time, from several beginnings.

    Of equally good ones those are taken that differ least from the usual ones.
    """

    def cost(weights: Weights) -> tuple[int, float]:
        usual = sum(abs(own - other) for own, other in zip(weights, Weights(), strict=True))
        return sum(errors[order(costs, weights)[0]].wrong for costs, errors in lists), usual

    found = Weights()
    for start in (found, Weights(0.0), Weights(0.0, 1.0), Weights(0.3, 0.3)):
        now, before = start, None
        while now != before:
            before = now
            for name in Weights._fields:
                own = getattr(now, name)
                tried = {*_STEPS, *(own * finer for finer in _FINER)}
                tried |= {-value for value in tried} if name == "beta" else set()
                now = min((now._replace(**{name: round(value, 4)}) for value in tried | {own}), key=cost)
        found = min(found, now, key=cost)
    return found

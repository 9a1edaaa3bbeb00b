"""Word errors, their bounds, and weights by which the fewest are made."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_client.cli import wer
from rlstm_client.cli.wer import Costs, Errors, Weights

pytest.importorskip("jiwer", reason="it comes with the extra rescore")

WORDS = st.lists(st.sampled_from("abc"), max_size=5)


@settings(max_examples=100)
@given(st.lists(WORDS, min_size=1, max_size=3), WORDS)
def test_errors_are_the_fewest(texts: list[list[str]], reference: list[str]) -> None:
    """Of each text, against the definition, written as a recursion; texts and reference may be empty."""

    def fewest(words: list[str]) -> int:
        @cache
        def edits(i: int, j: int) -> int:
            if not i or not j:
                return i + j
            replaced = edits(i - 1, j - 1) + (words[i - 1] != reference[j - 1])
            return min(edits(i - 1, j) + 1, edits(i, j - 1) + 1, replaced)

        return edits(len(words), len(reference))

    found = wer.errors_of([" ".join(words) for words in texts], " ".join(reference))
    assert found == [Errors(fewest(words), len(reference)) for words in texts]


def test_the_interval_holds_what_the_errors_came_from() -> None:
    """Of 40 samples of a known rate at least 34 hold it; of equal utterances it has no width."""
    draw, held = random.Random(1), 0
    for _ in range(40):
        low, high = wer.interval([Errors(draw.choices((0, 1, 4), (6, 3, 1))[0], 7) for _ in range(60)])
        held += low <= 0.7 / 7 <= high
    assert held >= 34
    assert wer.interval([Errors(1, 4)] * 9) == (0.25, 0.25)


@pytest.mark.parametrize("truth", [Weights(0.5, 0.0, 0.0), Weights(0.0, 0.7, 2.0), Weights(0.3, 0.2, -1.0)])
def test_weights_are_found(truth: Weights) -> None:
    """Where some weights make no error those that are found make few, on lists that were held back too."""
    draw = random.Random(2)

    def drawn() -> tuple[list[Costs], list[Errors]]:
        costs = [
            Costs(draw.gauss(0, 3), draw.gauss(-20, 5), draw.gauss(-20, 5), draw.randint(1, 6))
            for _ in range(5)
        ]
        right = wer.order(costs, truth)[0]
        return costs, [Errors(int(at != right), 3) for at in range(5)]

    def rate(lists: list[tuple[list[Costs], list[Errors]]], weights: Weights) -> float:
        return wer.rate([errors[wer.order(costs, weights)[0]] for costs, errors in lists])

    lists = [drawn() for _ in range(300)]
    found = wer.tuned(lists[:200])
    assert rate(lists[:200], found) <= 0.01
    assert rate(lists[200:], found) < 0.25 * rate(lists[200:], Weights())

"""In chunks or token by token: the same distributions, to the last bit, those that texts are scored by."""

import numpy as np
import pytest

import rlstm_model
from rlstm_model.compression.reading import KINDS, Reading

TEXT = list(b"the sea was calm and cold; the sea was calm and cold;\n" * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_see_the_same(tiny_checkpoint, kind):
    """Whole chunks, any cut of them, and one after the other, over many segments."""
    model = rlstm_model.load(tiny_checkpoint)
    whole = np.concatenate([chunk.log_probs_TV for chunk in Reading(model, kind).read(TEXT)])
    assert whole.shape == (len(TEXT), 256)

    single = Reading(model, kind)
    for token, expected in zip(TEXT, whole, strict=True):
        assert single.next().tobytes() == expected.tobytes()
        single.observe(token)

    cut = Reading(model, kind)
    pieces = [chunk for start in range(0, len(TEXT), 11) for chunk in cut.read(TEXT[start : start + 11])]
    assert np.concatenate([chunk.log_probs_TV for chunk in pieces]).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_distributions_are_what_tokens_are_scored_by(tiny_checkpoint, kind):
    """They sum to one, and have the score of each token."""
    for chunk in Reading(rlstm_model.load(tiny_checkpoint), kind).read(TEXT):
        assert np.exp(chunk.log_probs_TV.astype(np.float64)).sum(1) == pytest.approx(1, abs=1e-5)
    ids = iter(TEXT)
    for chunk in Reading(rlstm_model.load(tiny_checkpoint), kind).read(TEXT):
        own = [row[next(ids)] for row in chunk.log_probs_TV]
        assert chunk.scores.logprobs == pytest.approx(own, abs=2e-6)


def test_reading_on_without_asking_first(tiny_checkpoint):
    """Is the same."""
    for kind in KINDS:
        asked, unasked = (Reading(rlstm_model.load(tiny_checkpoint), kind) for _ in range(2))
        for token in TEXT[:20]:
            asked.next()
            asked.observe(token)
            unasked.observe(token)
        assert asked.next().tobytes() == unasked.next().tobytes()

"""The temperature: its search against lists of losses, its losses against plain scoring."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import static_loss
from rlstm_training.evaluation.temperature import TEMPERATURES, search_temperature, static_losses

BOS = 10


def test_pitfall_23_the_published_temperatures():
    """From 1.06 down to 0.8 in steps of 0.02, as inverse temperatures."""
    assert [f"{temperature:.2f}" for temperature in TEMPERATURES] == [
        f"{hundredths / 100:.2f}" for hundredths in range(106, 79, -2)
    ]


@given(st.lists(st.one_of(st.integers(0, 5), st.just(math.nan)), min_size=14, max_size=14))
def test_the_search_stops_after_two_without_improvement(losses):
    """Values are tried in order until two in a row are no better than the best before them."""
    by_temperature = dict(zip(TEMPERATURES, losses, strict=True))
    tried = list(search_temperature(by_temperature.__getitem__))
    assert tried == [(t, by_temperature[t]) for t, _ in tried]
    least, waits = math.inf, []
    for loss in losses:
        waits.append(0 if loss < least else (waits[-1] if waits else 0) + 1)
        least = min(least, loss)
    assert len(tried) == (waits.index(2) + 1 if 2 in waits else len(losses))


def test_a_loss_is_the_mean_over_all_tokens(random_model, words):
    """Of several texts, each from its beginning."""
    model = random_model()
    passages = [Passage(name=str(seed), ids=list(words(80, seed)), bytes=1) for seed in (1, 2)]
    nats = [static_loss(model, part, bos_id=BOS).static_nats for part in passages]
    tokens = sum(len(part.ids) for part in passages)
    assert static_losses(model, passages, bos_id=BOS)(1.0) == pytest.approx(math.fsum(nats) / tokens)


def test_pitfall_23_temperature_multiplies(random_model, words):
    """A temperature is the logits' factor: twice the output layer at 1 is the same model at 2."""
    model, doubled = random_model(), random_model()
    doubled.embedding.output.mul_(2)
    doubled.embedding.bias.mul_(2)
    passages = [Passage(name="text", ids=list(words(20, 1)), bytes=1)]
    at_two = static_losses(model, passages, bos_id=BOS)(2.0)
    assert at_two == pytest.approx(static_losses(doubled, passages, bos_id=BOS)(1.0), abs=1e-5)
    assert at_two != pytest.approx(static_losses(model, passages, bos_id=BOS)(0.5), abs=1e-2)

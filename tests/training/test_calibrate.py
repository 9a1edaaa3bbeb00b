import math

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_training.calibrate import (
    Statistics,
    Trial,
    best,
    measure,
    most_trials,
    read_heads,
    search,
    session_losses,
)
from rlstm_training.evaluation import dynamic_loss
from rlstm_training.texts import Passage

RATES = (1.0, 2.0, 4.0, 8.0)


def _valley(best_rate, best_decay):
    """A loss with one best place on the grid, by text."""

    def loss(rate, decay):
        depth = abs(math.log2(rate / best_rate)) + abs(decay - best_decay)
        return {"a": 1 + depth, "b": 3 + depth}

    return loss


@pytest.mark.parametrize(("rate", "decay"), [(1.0, 0.0), (4.0, 0.0), (8.0, 0.0), (2.0, 0.1)])
def test_the_search_finds_the_best_place(rate, decay):
    """Wherever the valley lies, at an edge or with decay, its bottom is chosen."""
    trials = list(search(_valley(rate, decay), RATES, (0.0, 0.1)))
    assert (best(trials).rate, best(trials).decay) == (rate, decay)
    assert len(trials) <= most_trials(RATES, (0.0, 0.1))


def test_decay_is_tried_at_the_next_rate_too():
    """Decay may want a higher rate than no decay."""

    def loss(rate, decay):
        return {"a": 0.5 if (rate, decay) == (4.0, 0.1) else _valley(2.0, 0.0)(rate, decay)["a"]}

    assert best(list(search(loss, (4.0, 1.0, 2.0, 8.0), (0.0, 0.1)))).rate == 4.0


def test_every_text_counts_the_same():
    """The objective is the mean over texts, so none of them decides alone."""
    trial = Trial(rate=1, decay=0, bits_per_byte={"a": 1.0, "b": 2.0, "c": 6.0})
    assert trial.mean == 3.0


def test_the_gentlest_of_equals_and_never_a_nan():
    """Ties go to the smaller rate; a rate that broke the model cannot win."""
    trials = [Trial(rate=rate, decay=0, bits_per_byte={"a": 2.0}) for rate in (4, 2, 8)]
    broken = Trial(rate=1, decay=0, bits_per_byte={"a": float("nan")})
    assert best([broken, *trials]).rate == 2


def test_heads_are_shared_out_by_rows():
    """Three rows of four read the first source: so do twelve heads of sixteen, at equal distances."""
    first, second = np.arange(1000), np.arange(5000, 5400)
    texts = read_heads([(first, 3), (second, 1)], 16, 50)
    starts = [text[0] for text in texts]
    assert starts == [i * 1000 // 12 for i in range(12)] + [5000, 5100, 5200, 5300]
    assert all(text == list(range(text[0], text[0] + 50)) for text in texts[:11])


def test_heads_run_on_over_the_end():
    """A head near the end of its source goes on at its beginning; a short source is read once."""
    assert read_heads([(np.arange(5), 1)], 2, 4) == [[0, 1, 2, 3], [2, 3, 4, 0]]
    assert read_heads([(np.arange(3), 1)], 1, 9) == [[0, 1, 2]]


@pytest.fixture(scope="module")
def model(random_model):
    return random_model()


@pytest.fixture(scope="module")
def measured(model, words):
    text = np.frombuffer(words(200, 1), dtype=np.uint8)
    statistics = Statistics(heads=3, segments=4, segment=6)
    return measure(model, [(text, 1)], bos_id=10, statistics=statistics)


def test_statistics_say_what_they_are(measured):
    """The config records segment, reduction, batch and number of gradients; the rate is not chosen yet."""
    config = measured.config
    assert (config.segment, config.reduction, config.statistics_batch) == (6, "mean", 1)
    assert (config.statistics_segments, config.rate) == (12, 0.0)
    assert bool((measured.rms_P >= 0).all())
    assert measured.rms_P.max() > 0


def test_the_search_uses_the_numbers_that_are_stored(measured):
    """Statistics are rounded to what the file holds before anything is chosen with them."""
    assert torch.equal(measured.rms_P, measured.rms_P.bfloat16().float())


def test_session_losses_are_those_of_new_sessions(model, measured, words):
    """Each text in a session of its own, at the rate that is tried."""
    passages = [Passage(name=str(seed), ids=list(words(12, seed)), bytes=60) for seed in (2, 3)]
    done = []
    losses = session_losses(model, measured, passages, bos_id=10, advance=done.append)(2e-3, 1e-3)
    adapter = Adapter(model, measured.with_rate(2e-3, 1e-3), bos_id=10)
    for passage in passages:
        expected = dynamic_loss(adapter, passage)
        assert losses[passage.name] == expected.bits_per_byte(expected.adapted_nats)
    assert sum(done) == sum(len(passage.ids) for passage in passages)

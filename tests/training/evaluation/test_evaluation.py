from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.vocab import WordVocab
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import (
    Stream,
    evaluator_of,
    read_adapting,
    read_static,
    static_loss,
    striped_loss,
    total,
)

BOS = 10


@pytest.fixture(scope="module")
def model(random_model):
    return random_model()


@pytest.fixture(scope="module")
def ids(words):
    return list(words(30, 3))


@pytest.fixture(scope="module")
def calibration(model, measure_rule):
    return measure_rule(model, 100, segment=7)


@pytest.fixture(scope="module")
def evaluator(model, measure_rule):
    """Learns fast enough that it shows."""
    rule = measure_rule(model, 100, segment=7, rate=3e-3, decay=1e-3)
    return evaluator_of(model, rule, bos_id=BOS)


def _passage(ids, name="text"):
    return Passage(name=name, ids=ids, bytes=len(ids))


def _token_by_token(model, ids, bos_id=BOS):
    """Nats of every token, one step of the model after the other, summed in Python's floats."""
    state, last, nats = model.initial_state(1), bos_id, 0.0
    for token in ids:
        features, state = model(torch.tensor([[last]]), state)
        nats -= model.log_probs(features)[0, 0, token].item()
        last = token
    return nats


def test_static_loss_equals_single_steps(model, ids):
    """Every token counts once, the first follows bos, the state is carried."""
    result = static_loss(model, _passage(ids), bos_id=BOS)
    assert result.static_nats == pytest.approx(_token_by_token(model, ids), abs=1e-4)
    assert (result.tokens, result.adapted_nats) == (len(ids), None)


def test_pitfall_20_first_tokens_and_ends_of_lines_count(model):
    """The first token is scored after bos, each line's end is a token, and the state goes on over it."""
    vocab = WordVocab.build("a b\nb a c\n" * 3)
    ids = vocab.encode("a b\nb a c\n").ids
    assert (len(ids), ids.count(vocab.eos_id)) == (7, 2)
    (result,) = read_static(model, [_passage(ids)], bos_id=vocab.eos_id)
    expected = _token_by_token(model, ids, vocab.eos_id)
    assert (result.tokens, result.static_nats) == (7, pytest.approx(expected, abs=1e-5))


def test_pitfall_21_published_numbers_have_no_cold_starts(model, words):
    """Reading in stripes restarts the state in each: the published reading is at batch 1."""
    ids = np.frombuffer(words(150, 6), dtype=np.uint8)
    whole = static_loss(model, _passage(list(map(int, ids))), bos_id=BOS)
    assert striped_loss(model, ids, stripes=4, window=40) != pytest.approx(
        whole.static_nats / len(ids), abs=1e-4
    )


def test_long_texts_are_read_in_slices(model, words, monkeypatch):
    """How much is read at once changes nothing, and progress is told token by token in all."""
    ids, done = list(words(200, 5)), []
    whole = static_loss(model, _passage(ids), bos_id=BOS)
    monkeypatch.setattr("rlstm_training.evaluation.evaluation._SLICE", 100)
    (sliced,) = read_static(model, [_passage(ids)], bos_id=BOS, advance=done.append)
    assert sliced.static_nats == pytest.approx(whole.static_nats, abs=1e-4)
    assert sum(done) == len(ids)
    assert max(done) == 100


@pytest.fixture
def streams(words):
    """Passages of unequal lengths, one of them empty and one shorter than a segment, and their rates."""
    lengths = [(90, 1.0), (3, 1.0), (41, 0.0), (0, 1.0), (90, 3.0), (14, 1.0)]
    text = list(words(60, 8))
    return [(_passage(text[i : i + length], str(i)), scale) for i, (length, scale) in enumerate(lengths)]


@pytest.mark.parametrize(("experts", "static"), [(1, True), (1, False), (2, True)])
def test_texts_read_together_are_texts_read_alone(evaluator, streams, experts, static):
    """Rows of one batch, whatever their lengths and rates: each costs, to the last bit, what it does alone.

    Every token of every text is told once; no streams are no evaluations.
    """
    given, done = {"static": static, "experts": experts}, []
    starts = [Stream([passage], evaluator.start(rate_scale=scale, **given)) for passage, scale in streams]
    together = read_adapting(evaluator, starts, done.append)
    assert together == [read_adapting(evaluator, [start])[0] for start in starts]
    assert together[0][0].adapted_nats != together[0][0].static_nats
    assert sum(done) == sum(len(passage.ids) for passage, _ in streams)
    assert read_adapting(evaluator, []) == []


def test_a_state_that_is_no_number_is_raised(model, calibration, streams):
    """It is not given as a number that somebody might believe."""
    evaluator = evaluator_of(model, calibration, bos_id=BOS)
    good = evaluator.start()
    bad = replace(good, now=good.now._replace(states_R2U=good.now.states_R2U * np.nan))
    with pytest.raises(NonFiniteState):
        read_adapting(evaluator, [Stream([streams[0][0]], good), Stream([streams[2][0]], bad)])


def test_pitfall_22_totals_weigh_by_tokens(model, ids):
    """The total of unequal parts is not the mean of their means."""
    parts = [static_loss(model, _passage(part, "x"), bos_id=BOS) for part in (ids[:5], ids[5:90])]
    whole = total("x", parts)
    assert (whole.tokens, whole.bytes) == (90, 90)
    assert whole.static_nats == pytest.approx(sum(part.static_nats for part in parts))


def test_striped_loss_equals_its_stripes_alone(model, words):
    """Equal stripes, each read from a zero state, each predicting its next token."""
    ids = np.frombuffer(words(150, 6), dtype=np.uint8)
    length = (len(ids) - 1) // 3
    nats = 0.0
    for stripe in range(3):
        part = [int(token) for token in ids[stripe * length : (stripe + 1) * length + 1]]
        state = model.initial_state(1)
        for token, following in pairwise(part):
            features, state = model(torch.tensor([[token]]), state)
            nats -= model.log_probs(features)[0, 0, following].item()
    assert striped_loss(model, ids, stripes=3, window=40) == pytest.approx(nats / (3 * length), abs=1e-5)


def test_short_texts_have_fewer_stripes(model, words):
    """A short text is not cut into stripes that are all cold start; one token cannot be predicted."""
    ids = np.frombuffer(words(30, 6), dtype=np.uint8)
    assert striped_loss(model, ids) == striped_loss(model, ids, stripes=1)
    with pytest.raises(ValueError, match="one token"):
        striped_loss(model, ids[:1])

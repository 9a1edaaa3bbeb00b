"""The range coder: what it is given, what that costs, and that it gives tokens back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.compression.coder import Decoder, Encoder, weights


def drawn(seed, count, vocab, scale):
    """Distributions as a model gives them, and tokens that follow them."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(count, vocab)) * scale
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    ids = [generator.choice(vocab, p=np.exp(row)) for row in log_probs]
    return log_probs.astype(np.float32), np.array(ids, np.int32)


def coded(ids, log_probs):
    encoder = Encoder()
    encoder.encode(ids, log_probs)
    return encoder.data()


@given(
    st.integers(0, 2**32), st.integers(1, 30), st.integers(2, 300), st.sampled_from([0.01, 1.0, 9.0, 300.0])
)
def test_tokens_come_back(seed, count, vocab, scale):
    """One by one, however they were given, even those to which the model gives no probability."""
    log_probs, ids = drawn(seed, count, vocab, scale)
    log_probs[0, ids[0]] = -np.inf
    encoder = Encoder()
    for cut in np.array_split(np.arange(count), 3):
        if len(cut):
            encoder.encode(ids[cut], log_probs[cut])
    assert encoder.data() == coded(ids, log_probs)
    decoder = Decoder(encoder.data())
    assert [decoder.decode(row) for row in log_probs] == ids.tolist()


@pytest.mark.parametrize(("vocab", "scale"), [(256, 0.1), (256, 2.0), (256, 12.0), (5_000, 2.0)])
def test_it_costs_next_to_nothing(vocab, scale):
    """To 0.1 % of the tokens' own bits, and the last word."""
    log_probs, ids = drawn(1, 2_000 if vocab == 256 else 300, vocab, scale)
    bits = -log_probs[np.arange(len(ids)), ids].sum(dtype=np.float64) / np.log(2)
    assert -64 < 8 * len(coded(ids, log_probs)) - bits < 0.001 * bits + 64


def test_weights_are_whole_numbers_near_the_probabilities():
    """To one part in 2,900 where that matters, against exact powers."""
    log_probs = np.linspace(-14.0, 0.0, 5_000, dtype=np.float32)
    found = weights(log_probs)
    assert (found == np.rint(found)).all()
    ratio = found / (2.0**30 * np.exp(log_probs.astype(np.float64)))
    assert np.abs(ratio - 1).max() < 1 / 2_900 + 1e-3
    assert np.abs(ratio[log_probs > -8] - 1).max() < 1 / 2_900
    assert weights(np.array([-np.inf, -9_999.0, 0.0, 1e-6], np.float32)).tolist() == [
        1.0,
        1.0,
        2.0**30,
        2.0**30,
    ]


def test_what_is_no_distribution_is_not_coded():
    with pytest.raises(ArithmeticError, match="not finite"):
        weights(np.array([0.0, np.nan], np.float32))


def test_files_of_today_are_read_tomorrow():
    """The bytes of a fixed example: another version of the library codes alike, or is found out."""
    log_probs = -np.arange(60, dtype=np.float32).reshape(5, 12) / 8
    assert coded(np.array([3, 0, 11, 7, 5], np.int32), log_probs).hex() == "192f0a6b"

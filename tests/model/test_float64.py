"""The shipped model against itself in float64, over the streams that results are measured on."""

import numpy as np
import pytest
import torch

from rlstm_model import checkpoint
from rlstm_model.adaptation.backend import NativeBackend
from rlstm_model.native import Row
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora.reading import load_stream, stream_names

TOKENS, WINDOW = 10_000, 250
STREAMS = corpora_folder() / "streams.json"


def bytes_of(name):
    """So many of a stream, as many of each of its segments."""
    segments = [text for _, text in load_stream(name)]
    return b"".join(text[: -(-TOKENS // len(segments))] for text in segments)[:TOKENS]


def log_probs_in_float64(model, ids_TB, state):
    """What torch gives, which is the equations to 1e-10 (``network/test_language_model.py``)."""
    with torch.no_grad():
        features, state = model(torch.from_numpy(ids_TB), state)
        return model.log_probs(features).numpy(), state


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not STREAMS.is_file(), reason="no streams in RLSTM_CORPORA"),
]


@pytest.fixture(scope="module")
def errors():
    """In nats: of each stream's tokens, ``[B, T]``, and the greatest of the vocabulary's, ``[B]``."""
    loaded = checkpoint.load("bytes-small")
    names = stream_names()
    ids_BT = np.array([list(bytes_of(name)) for name in names], np.int64)
    assert ids_BT.shape == (len(names), TOKENS)
    inputs_BT = np.concatenate([np.full((len(names), 1), loaded.vocab.bos_id), ids_BT[:, :-1]], 1)
    model = LanguageModel.of(loaded.parameters).double()
    backend, state = NativeBackend(loaded.parameters, threads=1), model.initial_state(len(names))
    states = np.zeros((len(names), 2, backend.units), np.float32)
    own_BT, greatest_B = np.zeros(ids_BT.shape), np.zeros(len(names))
    for start in range(0, TOKENS, WINDOW):
        now = slice(start, start + WINDOW)
        expected_TBV, state = log_probs_in_float64(model, np.ascontiguousarray(inputs_BT[:, now].T), state)
        rows = [Row(ids.tolist(), own) for ids, own in zip(inputs_BT[:, now], states, strict=True)]
        reads = backend.read(rows)
        states = np.stack([read.states_2U for read in reads])
        for n, read in enumerate(reads):
            error_TV = np.abs(read.log_probs_TV - expected_TBV[:, n])
            greatest_B[n] = max(greatest_B[n], error_TV.max())
            own_BT[n, now] = error_TV[np.arange(WINDOW), ids_BT[n, now]]
    for name, own_T, greatest in zip(names, own_BT, greatest_B, strict=True):
        figures = ", ".join(f"{np.quantile(own_T, part):.1e}" for part in (0.5, 0.99, 0.999, 1.0))
        print(
            f"{name}: {figures} of its tokens (half, 99 %, 99.9 %, all); {greatest:.1e} of the vocabulary's"
        )
    return own_BT, greatest_B


def test_log_probabilities_are_those_of_float64(errors):
    """Within 2e-5 nats of 99 of 100 tokens, and nowhere further than rounding carries in a long text."""
    own_BT, greatest_B = errors
    assert (np.quantile(own_BT, 0.99, axis=1) <= 2e-5).all()
    assert greatest_B.max() <= 1e-3


@pytest.mark.xfail(strict=True, reason="single tokens are further off; float32 in torch errs half as much")
def test_every_log_probability_is_within_2e_5(errors):
    own_BT, _ = errors
    assert own_BT.max() <= 2e-5

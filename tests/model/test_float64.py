"""The shipped model against itself in float64, over the streams that results are measured on."""

import numpy as np
import pytest
import torch

from rlstm_model import checkpoint
from rlstm_model.adaptation.backend import NativeBackend, Row
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not STREAMS.is_file(), reason="no streams in RLSTM_CORPORA")
def test_log_probabilities_are_those_of_float64():
    """Within 2e-5 nats, of every token of the vocabulary after 10,000 tokens of each stream."""
    loaded = checkpoint.load("bytes-small")
    names = stream_names()
    ids_BT = np.array([list(bytes_of(name)) for name in names], np.int64)
    assert ids_BT.shape == (len(names), TOKENS)
    inputs_BT = np.concatenate([np.full((len(names), 1), loaded.vocab.bos_id), ids_BT[:, :-1]], 1)
    model = LanguageModel.of(loaded.parameters).double()
    backend, state = NativeBackend(loaded.parameters), model.initial_state(len(names))
    states = np.zeros((len(names), 2, backend.units), np.float32)
    worst, of_text = np.zeros(len(names)), np.zeros(len(names))
    for start in range(0, TOKENS, WINDOW):
        inputs = inputs_BT[:, start : start + WINDOW]
        expected_TBV, state = log_probs_in_float64(model, np.ascontiguousarray(inputs.T), state)
        reads = backend.read([Row(ids.tolist(), own) for ids, own in zip(inputs, states, strict=True)])
        states = np.stack([read.states_2U for read in reads])
        for n, read in enumerate(reads):
            error_TV = np.abs(read.log_probs_TV - expected_TBV[:, n])
            worst[n] = max(worst[n], error_TV.max())
            targets = ids_BT[n, start : start + WINDOW]
            of_text[n] = max(of_text[n], error_TV[np.arange(WINDOW), targets].max())
    for name, own, every in zip(names, of_text, worst, strict=True):
        print(f"{name}: {own:.1e} of its tokens, {every:.1e} of all")
    assert worst.max() <= 2e-5

"""What is measured is really done: learned from, by the rule, and scored."""

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibrated
from rlstm_training.bench import works
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.bench.works import EagerSession, lstm_scoring, one_session, scoring, sessions
from rlstm_training.evaluation.measurements import Measurements, Setting, Statistics

BOS, SEGMENT = 10, 6


@pytest.fixture(scope="module")
def calibrated(random_model, words):
    text = np.frombuffer(words(100, 1), dtype=np.uint8)
    statistics = Statistics(heads=2, segments=5)
    measured = Measurements(random_model(), [(text, 1)], bos_id=BOS, statistics=statistics)
    rule = measured.config(Setting(rate=1e-2, decay=0.01, segment=SEGMENT))
    return Calibrated(model=measured.model, statistics=measured.of(SEGMENT), choices=(rule,))


def test_an_eager_session_learns_what_the_adapter_learns(calibrated):
    """After three segments its weights are the slow ones plus the fast ones, decay and all."""
    model, full = calibrated.model, calibrated.choose()
    ids = torch.tensor([BOS, *b"the sea"])
    eager = EagerSession(model, full, ids[: SEGMENT + 1])
    adapter = Adapter(model, full, bos_id=BOS)
    state = adapter.start(static=False)
    assert eager() == SEGMENT
    for observed in adapter.observe(state, ids[1 : SEGMENT + 1].tolist()):
        state = observed.state
    own = torch.cat([weight.detach().flatten() for weight in eager.model.parameters()])
    slow = torch.cat([weight.flatten() for weight in model.parameters()])
    torch.testing.assert_close(own - slow, state.delta_KP[0], atol=1e-6, rtol=1e-3)
    for _ in range(2):
        before = own
        eager()
        own = torch.cat([weight.detach().flatten() for weight in eager.model.parameters()])
        assert not torch.equal(own, before)


def test_one_session_goes_on(calibrated, monkeypatch):
    """Each segment begins where the last one ended, with what was learned from it."""
    seen = _states_seen(monkeypatch)
    work = one_session(calibrated.model, calibrated.choose(), bos_id=BOS)
    assert [work(), work()] == [SEGMENT, SEGMENT]
    assert [state.position for state in seen] == [0, SEGMENT]
    assert seen[1].delta_KP.any()


def test_many_sessions_have_fast_weights_of_their_own(calibrated, monkeypatch):
    """They have learned before, so none is read with the shared weights."""
    asked = []
    monkeypatch.setattr(works, "read_together", lambda adapter, streams: asked.append(streams))
    assert sessions(calibrated.model, calibrated.choose(), bos_id=BOS, count=3)() == 3 * SEGMENT
    (streams,) = asked
    assert len({tuple(stream.passage.ids) for stream in streams}) == 3
    assert all(stream.state.delta_KP.any() for stream in streams)
    assert all(len(stream.passage.ids) == SEGMENT for stream in streams)


def _states_seen(monkeypatch):
    seen = []

    class Recording(Adapter):
        def observe(self, state, ids, **named):
            seen.append(state)
            return super().observe(state, ids, **named)

    monkeypatch.setattr(works, "Adapter", Recording)
    return seen


def test_scoring_scores_every_token(calibrated, monkeypatch):
    """Ours, and torch.nn.LSTM's: distributions over the vocabulary for all rows, which sum to 1."""
    scored = []

    def score(logits, targets):
        scored.append((logits, targets))
        return real(logits, targets)

    real = works._score
    monkeypatch.setattr(works, "_score", score)
    lstm = TorchLSTM(lstm_of_equal_size(calibrated.model.config)).requires_grad_(False)
    for work in (scoring(calibrated, 5), lstm_scoring(lstm, SEGMENT, 5)):
        assert work() == 5 * SEGMENT
    for logits, targets in scored:
        assert logits.shape == (SEGMENT, 5, 256)
        assert real(logits, targets).shape == (SEGMENT, 5, 1)
        all_of_them = torch.arange(256).expand(SEGMENT, 5, 256)
        total = torch.cat([real(logits, all_of_them[..., k]) for k in range(256)], -1).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones(SEGMENT, 5))

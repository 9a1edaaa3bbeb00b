"""What is measured is really done: learned from, by the rule, and scored."""

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_training.bench import works
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.bench.works import EagerSession, lstm_scoring, one_session, scoring, sessions, sgemm
from rlstm_training.evaluation.measurements import Measurements, Setting, Statistics

BOS, SEGMENT = 10, 6


@pytest.fixture(scope="module")
def calibrated(random_model, words):
    text = np.frombuffer(words(100, 1), dtype=np.uint8)
    statistics = Statistics(heads=2, segments=5)
    measured = Measurements(random_model(), [(text, 1)], bos_id=BOS, statistics=statistics)
    rule = measured.config(Setting(rate=1e-2, decay=0.01, segment=SEGMENT))
    return CalibrationSet(model=measured.model, statistics=measured.of(SEGMENT), choices=(rule,))


def test_an_eager_session_learns_what_the_adapter_learns(calibrated):
    """After three segments its weights are the slow ones plus the fast ones, decay and all."""
    model, full = calibrated.model, calibrated.choose()
    ids = torch.tensor([BOS, *b"the sea"])
    eager = EagerSession(model, full, ids[: SEGMENT + 1])
    evaluator = DynamicEvaluator(model, full, bos_id=BOS)
    state = evaluator.start(static=False)
    assert eager() == SEGMENT
    for observed in evaluator.observe(state, ids[1 : SEGMENT + 1].tolist()):
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
    monkeypatch.setattr(
        works, "read_together", lambda evaluator, streams, thread_pool: asked.append((streams, thread_pool))
    )
    with ThreadPool(2) as thread_pool:
        work = sessions(calibrated.model, calibrated.choose(), bos_id=BOS, count=3, thread_pool=thread_pool)
        assert work() == 3 * SEGMENT
    ((streams, given),) = asked
    assert given is thread_pool
    assert all(stream.state.expert_config.rows == 1 for stream in streams)
    assert len({tuple(stream.passage.ids) for stream in streams}) == 3
    assert all(stream.state.delta_KP.any() for stream in streams)
    assert all(len(stream.passage.ids) == SEGMENT for stream in streams)


@pytest.mark.parametrize("experts", [2, 4])
def test_sessions_of_several_experts(calibrated, monkeypatch, experts):
    """A row each, of which one is static; those that learn have learned before."""
    asked = []
    monkeypatch.setattr(works, "read_together", lambda evaluator, streams, thread_pool: asked.extend(streams))
    sessions(calibrated.model, calibrated.choose(), bos_id=BOS, count=2, experts=experts)()
    for stream in asked:
        expert_config, delta_KP = stream.state.expert_config, stream.state.delta_KP
        assert (expert_config.experts, expert_config.rows, len(delta_KP)) == (experts, experts, experts - 1)
        assert bool(delta_KP.any(1).all())


def _states_seen(monkeypatch):
    seen = []

    class Recording(DynamicEvaluator):
        def observe(self, state, ids, **named):
            seen.append(state)
            return super().observe(state, ids, **named)

    monkeypatch.setattr(works, "DynamicEvaluator", Recording)
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
    for work in (scoring(FrozenWeights(calibrated.model), SEGMENT, 5), lstm_scoring(lstm, SEGMENT, 5)):
        assert work() == 5 * SEGMENT
    for logits, targets in scored:
        assert logits.shape == (SEGMENT, 5, 256)
        assert real(logits, targets).shape == (SEGMENT, 5, 1)
        all_of_them = torch.arange(256).expand(SEGMENT, 5, 256)
        total = torch.cat([real(logits, all_of_them[..., k]) for k in range(256)], -1).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones(SEGMENT, 5))


class _Seen(FrozenWeights):
    """Keeps, in ``read_from``, the states of rows that were read."""

    def read(self, delta_NP, ids_TN, state, **named):
        self.read_from.append(state)
        return super().read(delta_NP, ids_TN, state, **named)


@pytest.fixture
def seen(calibrated):
    weights = _Seen(calibrated.model)
    object.__setattr__(weights, "read_from", [])
    return weights


def test_scoring_goes_on(seen):
    """Each segment begins where the last one ended."""
    work = scoring(seen, SEGMENT, 3)
    assert [work(), work()] == [3 * SEGMENT] * 2
    first, second = seen.read_from
    assert not first.h.any()
    assert second.h.any()


@pytest.mark.parametrize(
    ("rows", "threads", "shares"),
    [(32, 2, [16, 16]), (32, 3, [8, 8, 16]), (21, 2, [8, 13]), (9, 4, [1, 8]), (5, 2, [5])],
)
def test_a_crew_shares_rows_in_whole_tiles(seen, rows, threads, shares):
    """As equal as they can be; a tile of its own is for no rows less than it. None is read twice."""
    assert seen.tile == 8
    with ThreadPool(threads) as thread_pool:
        work = scoring(seen, SEGMENT, rows, thread_pool)
        assert work() == rows * SEGMENT
    assert sorted(state.batch for state in seen.read_from) == sorted(shares)


def test_a_large_product_is_counted_in_multiply_adds(monkeypatch):
    """n^3 of a product of n by n."""
    monkeypatch.setattr(works, "SGEMM_SIZE", 20)
    asked = []
    monkeypatch.setattr(works.functional, "linear", lambda a, b: asked.append((a.shape, b.shape)))
    assert sgemm(torch.device("cpu"))() == 8000
    assert asked == [((20, 20), (20, 20))]

"""What keeps learning in bounds: each guard acts, is named in the answer, and is counted."""

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.loss_guard import FREEZE
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.models import ServedModel
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import ResetRequest
from rlstm_server.schemas.text import AdaptationRequest
from rlstm_server.store.base import SessionKey

TEXT = "the quick brown fox jumps over the lazy dog; "
HOSTILE = "".join(chr(33 + number % 90) * 5 for number in range(80))
"""Each segment says what the next one is not."""

ALONE = AdaptationRequest(experts=1)
"""One expert beside the static row: its loss is guarded."""


@pytest.fixture
def engine_with(store, tools):
    """Run an engine whose model learns by the given rule, with metrics of its own."""

    @asynccontextmanager
    async def running(**rule):
        given = tools.serve(ByteVocab())
        calibrated = CalibrationSet(
            statistics=given.calibrated.statistics,
            choices=(replace(given.calibrated.default, **rule),),
        )
        served = ServedModel(
            name="t", fingerprint="f", parameters=given.parameters, vocab=given.vocab, calibrated=calibrated
        )
        metrics = Metrics()
        async with tools.engine_on(store, served=served, metrics=metrics) as engine:
            engine.counted = lambda name, **labels: metrics.registry.get_sample_value(f"rlstm_{name}", labels)
            yield engine

    return running


def drop_copy(engine, talk):
    """Make the engine load the session again."""
    engine.sessions.cache.drop(SessionKey(talk.caller.tenant, talk.session))


def outcomes(engine, outcome):
    return engine.counted("adapt_updates_total", outcome=outcome)


async def test_a_step_beyond_the_norm_is_cut_back(engine_with, tools):
    """The norm stays at its bound, in the answer, the session and the metrics."""
    async with engine_with(rate=10.0, max_norm_ratio=0.01) as engine:
        talk = await tools.Talk.begin(engine)
        answer = await talk.append(TEXT)
        info = await talk.info()

        assert answer.guards == {"projected": answer.updates}
        assert answer.norm_ratio == info.norm_ratio == pytest.approx(0.01, rel=1e-3)
        assert info.totals.guards == answer.updates == outcomes(engine, "clipped")
        assert engine.counted("fast_weight_delta_ratio_count") == 1


async def test_steps_that_are_not_finite_are_skipped_and_then_restarted(engine_with, tools):
    """Nothing is learned, nothing breaks: the session goes on as the static model."""
    async with engine_with(rate=1e39, max_norm_ratio=1e30) as engine:
        talk = await tools.Talk.begin(engine)
        answer = await talk.append(TEXT)

        assert set(answer.guards) == {"step_skipped", "restarted"}
        assert answer.updates == 0
        assert answer.totals.weights_logprob == pytest.approx(answer.totals.static_logprob, abs=1e-4)
        assert outcomes(engine, "skipped_nonfinite") == answer.guards["step_skipped"] >= 3
        assert outcomes(engine, "rolled_back") == answer.guards["restarted"] >= 1


async def test_a_single_expert_that_loses_is_reset_and_frozen(engine_with, tools):
    """Beside the static row it is watched; what it costs is bounded, and the answer says what was done."""
    async with engine_with(rate=10.0, max_norm_ratio=50.0) as engine:
        watched = await tools.Talk.begin(engine, adaptation=ALONE)
        free = await tools.Talk.begin(engine, adaptation=ALONE.model_copy(update={"static": False}))
        answer, harm = await watched.append(HOSTILE), await free.append(HOSTILE)

        assert answer.guards["reset"] == outcomes(engine, "rolled_back") >= 1
        assert answer.guards["frozen"] == outcomes(engine, "skipped_frozen") >= FREEZE
        assert answer.totals.logprob > harm.totals.logprob
        assert not {"reset", "frozen"} & set(harm.guards)


async def test_the_watch_is_part_of_the_state(engine_with, store, tools):
    """Cut into appends, with a state from the store for each, a watched text is the same text."""
    async with engine_with(rate=0.5, max_norm_ratio=1.0) as one:
        whole = await tools.Talk.begin(one, adaptation=ALONE)
        talk = await tools.Talk.begin(one, adaptation=ALONE)
        at_once = await whole.append(HOSTILE)
        pieces = []
        for start in range(0, len(HOSTILE), 17):
            drop_copy(one, talk)
            pieces.append(await talk.append(HOSTILE[start : start + 17]))

        logprobs = [value for piece in pieces for value in piece.columns.logprobs]
        assert logprobs == pytest.approx(at_once.columns.logprobs, abs=1e-4)
        assert sum((Counter(piece.guards) for piece in pieces), Counter()) == at_once.guards
        assert at_once.guards["reset"] >= 1


async def test_several_experts_need_no_watch(engine_with, tools):
    """The static one bounds the harm, and its weight is counted at each commit."""
    async with engine_with(rate=3.0, max_norm_ratio=5.0) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4))
        answer = await talk.append(TEXT * 3)
        info = await talk.info()

        assert not {"reset", "frozen"} & set(answer.guards)
        assert answer.weights == info.weights
        assert len(answer.weights) == 5
        assert sum(answer.weights) == pytest.approx(1.0)
        assert engine.counted("mixture_static_weight_count") == 1
        assert engine.counted("mixture_static_weight_sum") == pytest.approx(answer.weights[0])


async def test_forgetting_leaves_no_norm_and_equal_weights(engine_with, tools):
    """What a session says of its weights is true after a reset."""
    async with engine_with() as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        learned = await talk.info()
        await engine.reset(ResetRequest(what="fast_weights").by(talk.call()))
        after = await talk.info()

        assert learned.norm_ratio > 0.0
        assert (after.norm_ratio, after.weights) == (0.0, (1 / 3,) * 3)

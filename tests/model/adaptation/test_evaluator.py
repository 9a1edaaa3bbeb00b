"""Score, then learn: against dynamic evaluation by hand, and for every way to cut a stream."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model import drawn

from rlstm_model.adaptation.batch import restart, run_batch
from rlstm_model.adaptation.evaluator import DynamicEvaluator, frozen_reader, reader_of
from rlstm_model.adaptation.items import ScoreChunk
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.native.packed import Space
from rlstm_model.vocab import InvalidToken

BOS, SEGMENT = 1, 4
tokens = st.integers(0, 18)
streams = st.lists(tokens, min_size=1, max_size=26)
few = settings(max_examples=12, deadline=None)


class ByHand:
    """One row, in float64: gradients are differences of losses, a step is the formula."""

    def __init__(self, parameters, calibration, rate_scale=1.0):
        self.parameters, self.calibration = parameters, calibration
        self.rate = calibration.config.rate * rate_scale
        self.delta = np.zeros(len(calibration.rms_P))
        config = parameters.config
        self.state = np.zeros((2, config.num_layers, config.hidden_size))
        self.last = BOS

    def score(self, ids, delta):
        """Log-probabilities of tokens with these fast weights, and the state after them."""
        config = self.parameters.config
        weights = drawn.merged(self.parameters.arrays, self.calibration.space, delta)
        inputs = [self.last, *ids[:-1]]
        log_probs, h, c = drawn.expected(config, weights, inputs, *self.state)
        return log_probs[np.arange(len(ids)), ids], np.array([h, c])

    def segment(self, ids, learn):
        """Log-probabilities of a segment's tokens, and one step."""
        logprobs, after = self.score(ids, self.delta)
        config, rms = self.calibration.config, self.calibration.rms_P.astype(np.float64)
        if len(ids) == config.segment and any(learn):
            scale = 1 / config.segment if config.reduction == "mean" else 1.0
            gradient = np.zeros_like(self.delta)
            for i in range(len(gradient)):
                step = np.zeros_like(self.delta)
                step[i] = 1e-5
                ahead, behind = (self.score(ids, self.delta + sign * step)[0] for sign in (1, -1))
                gradient[i] = -((ahead - behind) * np.array(learn)).sum() * scale / 2e-5
            mean = rms.mean()
            ratio = rms / mean if config.rule == "rms" else np.ones_like(rms)
            direction = gradient / (rms + config.epsilon * mean) if config.rule == "rms" else gradient
            pull = np.minimum(config.decay * ratio, 1.0) * self.delta
            self.delta = self.delta - self.rate * direction - pull
        self.state, self.last = after, ids[-1]
        return logprobs


SMALL = Space({}, ("embedding.bias", "stack.layers.0.bias", "stack.layers.1.mogrifier_bias"))
RULES = [
    {"decay": 0.1},
    {"rule": "sgd", "rate": 0.1, "decay": 0.05},
    {"rate": 0.05, "reduction": "sum", "epsilon": 0.5},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_dynamic_evaluation_by_hand(observe, text, rule):
    parameters = drawn.parameters_of(hidden_size=6)
    calibration = drawn.calibration_of(parameters, space=SMALL, **rule)
    evaluator = DynamicEvaluator.of(parameters, calibration, bos_id=BOS)
    ids, learn = text(14), [True] * 6 + [False] * 8
    seen = observe(evaluator, (ids[:6], True), (ids[6:], False))
    hand = ByHand(parameters, calibration)
    logprobs = [hand.segment(ids[i : i + SEGMENT], learn[i : i + SEGMENT]) for i in range(0, 14, SEGMENT)]
    np.testing.assert_allclose(seen.logprobs, np.concatenate(logprobs), atol=2e-5)
    np.testing.assert_allclose(seen.state.delta_KP[0], hand.delta, atol=2e-5)
    assert seen.state.updates == 2


def test_half_precision_keeps_the_digits_that_it_can(make_evaluator, observe, text):
    parameters = drawn.parameters_of()
    space = drawn.draw_space(parameters.arrays, np.random.default_rng(5))
    wide, half = (
        observe(make_evaluator(parameters, space=space._replace(dtype=dtype)), text(26))
        for dtype in (np.float32, np.float16)
    )
    assert half.state.delta_KP.dtype == np.float16
    np.testing.assert_allclose(half.state.delta_KP, wide.state.delta_KP, atol=2e-3)
    np.testing.assert_allclose(half.logprobs, wide.logprobs, atol=2e-2)


def test_the_kind_full_changes_every_weight(make_evaluator, observe, text):
    evaluator = make_evaluator(space=Space({}, (), whole=True), kind="full", rate=0.01)
    seen = observe(evaluator, text(20), experts=2)
    assert seen.state.delta_KP.shape == (1, evaluator.backend.fast_weights)
    assert (seen.state.delta_KP != 0).mean() > 0.9
    assert seen.logprobs.sum() != seen.static.sum()
    frozen = frozen_reader(drawn.parameters_of(), BOS)
    np.testing.assert_allclose(frozen.score(frozen.cursor, text(20))[0].logprobs, seen.static, atol=2e-6)


@few
@given(streams, st.data())
def test_without_rate_and_decay_it_is_the_frozen_model(make_evaluator, observe, ids, data):
    """To the last bit, however the text is cut."""
    still = make_evaluator(rate=0.0, decay=0.0)
    cut = data.draw(st.integers(0, len(ids)))
    seen = observe(still, ids[:cut], ids[cut:])
    reader = frozen_reader(drawn.parameters_of(), BOS)
    whole, _ = reader.score(reader.cursor, ids)
    assert seen.logprobs.tobytes() == seen.static.tobytes() == whole.logprobs.tobytes()
    assert seen.state.delta_KP is None


@pytest.mark.parametrize("rule", [{"rate": 0.0, "decay": 0.5}, {"rate": 1e-30}], ids=str)
def test_steps_that_change_nothing_leave_the_frozen_model(make_evaluator, observe, text, rule):
    """By the learning pass too the scores are the static ones, to the last bit."""
    seen = observe(make_evaluator(**rule), text(23))
    assert seen.state.updates == 5
    assert seen.logprobs.tobytes() == seen.static.tobytes()


def test_rate_scale_multiplies_the_rate(make_evaluator, observe, text):
    one, other = make_evaluator(rate=0.02), make_evaluator(rate=0.06)
    first, second = observe(one, text(23), rate_scale=3.0), observe(other, text(23))
    np.testing.assert_allclose(first.logprobs, second.logprobs, atol=1e-5)
    zero = observe(one, text(23), rate_scale=0.0)
    assert zero.logprobs.tobytes() == zero.static.tobytes()
    assert zero.state.updates == 0


@few
@given(streams, st.data())
def test_the_future_never_changes_the_past(evaluator, observe, ids, data):
    """Other tokens from any place on change no score before it, not in the last bit."""
    place = data.draw(st.integers(0, len(ids)))
    changed = ids[:place] + data.draw(st.lists(tokens, min_size=len(ids) - place, max_size=len(ids) - place))
    one, other = observe(evaluator, ids, experts=4), observe(evaluator, changed, experts=4)
    assert one.logprobs[:place].tobytes() == other.logprobs[:place].tobytes()


@few
@given(streams, st.lists(st.integers(0, 26), max_size=5), st.sampled_from([1, 2, 4]))
def test_a_stream_may_be_cut_anywhere(evaluator, observe, bits_of, ids, cuts, experts):
    """Scores and states are the same to the last bit."""
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    whole = observe(evaluator, ids, experts=experts)
    pieces = observe(evaluator, *(ids[a:b] for a, b in pairwise(places)), experts=experts)
    assert pieces.logprobs.tobytes() == whole.logprobs.tobytes()
    assert bits_of(pieces.state) == bits_of(whole.state)


def test_what_may_not_be_learned_from_is_not(evaluator, observe, text):
    ids = text(12)
    seen = observe(evaluator, (ids[:4], True), (ids[4:8], False), (ids[8:], True))
    assert [chunk.updates for chunk in seen.chunks] == [1, 0, 1]
    assert seen.chunks[1].state.delta_KP is seen.chunks[0].state.delta_KP


def test_ids_outside_the_vocabulary_and_no_tokens(evaluator):
    state = evaluator.start()
    for bad in (-1, 19, -100, 2**40):
        with pytest.raises(InvalidToken) as raised:
            evaluator.observe(state, [3, bad])
        assert (raised.value.index, raised.value.id) == (1, bad)
    assert not [*evaluator.observe(state, [])]


def test_scores_are_those_of_the_mixture(make_evaluator, observe, text):
    """Of evaluators that run alone, each with its rate, and the frozen model."""
    ids, rates = text(23), (0.01, 0.03, 0.09)
    mixed = observe(make_evaluator(rate=0.03), ids, experts=4)
    alone = [observe(make_evaluator(rate=rate), ids) for rate in rates]
    columns = np.array([alone[0].static, *(one.logprobs for one in alone)], np.float64)
    weights, logprobs = np.full(4, 0.25), []
    for t, column in enumerate(columns.T):
        joint = weights * np.exp(column)
        logprobs.append(np.log(joint.sum()))
        weights = joint / joint.sum() * (1 - 1 / (t + 2)) + 1 / (t + 2) / 4
    np.testing.assert_allclose(mixed.logprobs, logprobs, atol=2e-5)
    np.testing.assert_allclose(mixed.state.weights, weights, rtol=1e-3)
    assert mixed.static.tobytes() == alone[0].static.tobytes()


def test_alternatives_ranks_and_entropies(evaluator, text):
    ids = text(7)
    seen = [*evaluator.observe(evaluator.start(experts=2), ids, top=19)]
    for chunk, start in zip(seen, (0, 4), strict=True):
        scores = chunk.scores
        probabilities = np.exp(scores.top_logprobs.astype(np.float64))
        np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
        entropies = -(probabilities * scores.top_logprobs).sum(1)
        np.testing.assert_allclose(scores.entropies, entropies, atol=1e-5)
        for n, token in enumerate(ids[start : start + len(scores)]):
            place = scores.top_ids[n].tolist().index(token)
            assert scores.ranks[n] == place + 1
            assert scores.logprobs[n] == pytest.approx(scores.top_logprobs[n, place], abs=1e-6)
    bare = DynamicEvaluator(evaluator.backend, evaluator.calibration, evaluator.slow_norm, BOS, True)
    (chunk, *_) = bare.observe(bare.start(), ids)
    assert not chunk.scores.ranks.any()
    assert np.isnan(chunk.scores.entropies).all()


@pytest.mark.parametrize("adapt", ["weights", "memory", "both"])
def test_of_some_tokens_together(evaluator, text, adapt):
    """The probability of white space is the sum over its tokens, of what each token is scored against."""
    ids, spaces = text(30), np.array([2, 7, 11])
    state = evaluator.start(experts=1 if adapt == "memory" else 2, adapt=adapt)
    seen = evaluator.chunk(state, ids, distributions=True, spaces=spaces)
    reader = reader_of(evaluator.backend, BOS)
    read = ScoreChunk(reader, reader.cursor, seen.ids, distributions=True, spaces=spaces)
    observed, scored = run_batch([seen, read])
    for chunk in (observed, scored):
        expected = np.log(np.exp(chunk.log_probs_TV[:, spaces].astype(np.float64)).sum(1))
        np.testing.assert_allclose(chunk.scores.space_logprobs, expected, atol=1e-6)
    assert observed.scores.static_space_logprobs.tobytes() == scored.scores.space_logprobs.tobytes()
    assert evaluator.chunk(state, ids).spaces is None


def test_the_temperature_is_in_all_that_is_scored(make_evaluator, observe, text):
    parameters = drawn.parameters_of()
    cold = replace_output(parameters, 0.5)
    ids, space = text(13), Space({}, ("stack.layers.0.bias",))
    one = observe(make_evaluator(parameters, temperature=0.5, space=space), ids)
    other = observe(make_evaluator(cold, space=space, max_norm_ratio=10.0), ids)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)
    np.testing.assert_allclose(one.state.delta_KP, other.state.delta_KP, atol=2e-5)


def replace_output(parameters, factor):
    """The same model with logits that are so many times as large."""
    arrays = dict(parameters.arrays)
    for name in ("embedding.output", "embedding.bias"):
        arrays[name] = arrays[name] * np.float32(factor)
    return parameters._replace(arrays=arrays)


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_a_reader_reads_on_as_observing_would(evaluator, observe, text, experts):
    ids = text(30)
    before = observe(evaluator, ids[:10], experts=experts)
    reader = evaluator.reader(before.state, static=True)
    chunks = [*reader.chunks(reader.cursor, ids[10:12])]
    after = observe(evaluator, (ids[10:12], False), state=before.state)
    assert chunks[0].scores.logprobs.tobytes() == after.logprobs.tobytes()
    assert chunks[0].static_logprobs.tobytes() == after.static.tobytes()
    cursor, spoken = evaluator.reader(before.state).cursor, []
    reader = evaluator.reader(before.state)
    for token in ids[10:12]:
        following = reader.next(cursor)
        assert np.exp(following.log_probs_V.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
        spoken.append(following.log_probs_V[token])
        cursor = following.after(token)
    np.testing.assert_allclose(spoken, after.logprobs, atol=2e-6)
    assert cursor.last == chunks[0].cursor.last
    assert cursor.mixture == chunks[0].cursor.mixture


def test_long_texts_are_read_in_chunks(monkeypatch, text):
    reader = frozen_reader(drawn.parameters_of(), BOS)
    whole, after = reader.score(reader.cursor, text(50), top=3)
    monkeypatch.setattr("rlstm_model.adaptation.evaluator.CHUNK", 7)
    pieces, also = reader.score(reader.cursor, text(50), top=3)
    for name in ("logprobs", "ranks", "entropies", "top_ids", "top_logprobs"):
        assert getattr(pieces, name).tobytes() == getattr(whole, name).tobytes()
    assert also.states_R2U.tobytes() == after.states_R2U.tobytes()


def test_a_repeated_motif_is_learned(make_evaluator, observe, text):
    motif = text(8)
    seen = observe(make_evaluator(rate=0.1, epsilon=1.0), motif * 30, experts=2)
    assert seen.logprobs[-80:].mean() > seen.static[-80:].mean() + 0.5


# ---- resets and guards ------------------------------------------------------------------------------------


def test_a_reset_of_both_is_a_new_stream_at_its_old_position(evaluator, observe, text, bits_of):
    before = observe(evaluator, text(10), experts=2).state
    state = evaluator.reset(before, fast_weights=True, recurrent=True)
    fresh = evaluator.start(experts=2)
    assert bits_of(replace(state, position=0, updates=0)) == bits_of(fresh)
    assert (state.position, state.updates) == (10, 2)
    # The grid stays absolute: the next step comes at position 12, of two tokens.
    seen = observe(evaluator, text(6, seed=2), state=state)
    assert [chunk.updates for chunk in seen.chunks] == [1, 1]


def test_a_reset_of_the_weights_reads_the_segment_again(evaluator, observe, text, bits_of):
    """Nothing before it is learned from after it, and the experts count alike."""
    ids = text(11)
    state = observe(evaluator, ids, experts=4).state
    reset = evaluator.reset(state, fast_weights=True, recurrent=False)
    assert reset.delta_KP is None
    assert reset.mixture == MixtureState.start(4)
    assert reset.pending == state.pending
    assert not any(reset.pending_learn)
    frozen = observe(evaluator, ids[:8], experts=4).chunks[-1].state
    zeroed = evaluator.reset(frozen, fast_weights=True, recurrent=False)
    again = observe(evaluator, (ids[8:], False), state=zeroed).state
    assert again.now.states_R2U.tobytes() == reset.now.states_R2U.tobytes()
    assert bits_of(evaluator.reset(state, fast_weights=False, recurrent=False)) == bits_of(state)


def test_a_step_that_is_not_finite_is_skipped_and_the_third_restarts(make_evaluator, observe, text):
    evaluator = make_evaluator()
    state = observe(evaluator, text(8), experts=2).state
    wild = replace(state, rate_scale=1e300)
    seen = observe(evaluator, text(12), state=wild)
    assert [chunk.guards for chunk in seen.chunks] == [("step_skipped",)] * 2 + [
        ("step_skipped", "restarted")
    ]
    assert [chunk.updates for chunk in seen.chunks] == [0, 0, 0]
    assert seen.chunks[1].state.delta_KP.tobytes() == state.delta_KP.tobytes()
    assert seen.state.delta_KP is None
    assert seen.state.bad_steps == (0,)
    assert np.isfinite(seen.logprobs).all()


@pytest.mark.parametrize("rule", [{}, {"rule": "sgd"}, {"decay": 3.0}], ids=str)
@pytest.mark.parametrize("rate_scale", [1e3, 1e6, 1e30, 1e300])
def test_an_absurd_rate_stays_finite(make_evaluator, observe, text, rule, rate_scale):
    """However large the steps: every score is a number, nothing raises, and no slow weight changes."""
    parameters = drawn.parameters_of()
    evaluator = make_evaluator(parameters, **rule)
    seen = observe(evaluator, text(80), rate_scale=rate_scale)
    assert np.isfinite(seen.logprobs).all()
    assert {guard for chunk in seen.chunks for guard in chunk.guards} <= {
        "projected",
        "step_skipped",
        "restarted",
    }
    for chunk in seen.chunks:
        if chunk.state.delta_KP is not None:
            assert np.linalg.norm(chunk.state.delta_KP) <= 0.5 * evaluator.slow_norm * (1 + 1e-5)
    for name, array in drawn.parameters_of().arrays.items():
        assert array.tobytes() == parameters.arrays[name].tobytes()


def test_a_shortened_segment_divides_by_its_full_length(make_evaluator, observe, text):
    """After a recurrent reset two tokens learn: their summed loss over S, not over two."""
    norms = []
    for reduction in ("mean", "sum"):
        evaluator = make_evaluator(reduction=reduction)
        state = evaluator.reset(observe(evaluator, text(6)).state, fast_weights=True, recurrent=True)
        norms += observe(evaluator, [3, 5], state=state).chunks[0].gradient_norms
    assert norms[0] == pytest.approx(norms[1] / SEGMENT, rel=1e-5)


def test_great_steps_are_cut_back(make_evaluator, observe, text):
    evaluator = make_evaluator(rate=50.0, max_norm_ratio=0.1)
    seen = observe(evaluator, text(8), experts=2)
    assert seen.chunks[0].guards == ("projected",)
    norm = np.linalg.norm(seen.chunks[0].state.delta_KP)
    assert norm == pytest.approx(0.1 * evaluator.slow_norm, rel=1e-5)


def test_fast_weights_that_compute_no_number_restart_alone(evaluator, observe, text):
    ids = text(14)
    state = observe(evaluator, ids[:9], experts=4).state
    delta = state.delta_KP.copy()
    delta[1] = 3e38
    seen = observe(evaluator, ids[9:], state=replace(state, delta_KP=delta))
    assert seen.chunks[0].guards == ("restarted",)
    after = seen.chunks[0].state
    assert np.isfinite(seen.logprobs).all()
    assert after.weights[2] < 0.1
    assert (after.delta_KP[[0, 2]] != 0).any(1).all()


@pytest.mark.parametrize("length", [8, 10])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_restart_reads_the_segment_again(evaluator, observe, text, bits_of, length, value):
    """The scores are those of zero fast weights from the segment's start."""
    state = observe(evaluator, text(length)).state
    bad = replace(state, delta_KP=np.full_like(state.delta_KP, value))
    found = observe(evaluator, text(9, 2), state=bad)
    zeroed = evaluator.reset(state, fast_weights=True, recurrent=False)
    expected = observe(evaluator, text(9, 2), state=replace(zeroed, pending_learn=state.pending_learn))
    assert [chunk.guards for chunk in found.chunks] == [("restarted",), *[()] * (len(found.chunks) - 1)]
    assert found.logprobs.tobytes() == expected.logprobs.tobytes()
    assert bits_of(found.state) == bits_of(expected.state)


@pytest.mark.parametrize("length", [8, 10])
def test_a_restart_is_of_the_chosen_experts(evaluator, observe, text, length):
    """Their fast weights, skips and weight in the mixture; the others keep theirs to the last bit."""
    state = replace(observe(evaluator, text(length), experts=4).state, bad_steps=(1, 2, 1))
    after = restart(evaluator, state, [False, True, False])
    assert after.bad_steps == (1, 0, 1)
    assert not after.delta_KP[1].any()
    assert after.delta_KP[[0, 2]].tobytes() == state.delta_KP[[0, 2]].tobytes()
    assert after.weights[2] == pytest.approx(1 / (length + 1) / 4)
    rows = after.now.states_R2U, state.now.states_R2U
    assert rows[0][[0, 1, 3]].tobytes() == rows[1][[0, 1, 3]].tobytes()
    assert (rows[0][2].tobytes() == rows[1][2].tobytes()) == (length == 8)
    assert evaluator.state_schema.restore(after.arrays(), after.header()).weights == after.weights
    for hopeless in (evaluator.start(), evaluator.reset(state, fast_weights=True, recurrent=False)):
        with pytest.raises(NonFiniteState, match="recurrent state or a slow weight"):
            restart(evaluator, hopeless, [True] * len(hopeless.bad_steps), must_help=True)


def test_a_broken_expert_does_not_speak(evaluator, observe, text):
    """Inference cannot restart an expert: the others are mixed as if they were all."""
    state = observe(evaluator, text(8), experts=4).state
    delta = state.delta_KP.copy()
    delta[1] = np.nan
    reader = evaluator.reader(replace(state, delta_KP=delta))
    following = reader.next(reader.cursor)
    assert np.exp(following.log_probs_V.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    assert following.after(3).mixture.weights[2] == pytest.approx(1 / (8 + 2) / 4)
    assert np.isfinite(reader.score(reader.cursor, text(3))[0].logprobs).all()


def test_a_state_that_is_no_number_raises(evaluator, observe, text):
    ids = text(14)
    state = observe(evaluator, ids[:9], experts=2).state
    broken = state.now.states_R2U.copy()
    broken[0] = np.nan
    for bad in (
        replace(state, now=state.now._replace(states_R2U=broken)),
        replace(state, start=state.start._replace(states_R2U=np.full_like(broken[1:], np.nan))),
    ):
        with pytest.raises(NonFiniteState):
            [*evaluator.observe(bad, ids[9:])]
    reader = evaluator.reader(replace(state, now=state.now._replace(states_R2U=np.full_like(broken, np.nan))))
    with pytest.raises(ArithmeticError):
        reader.score(reader.cursor, ids)
    assert np.isnan(reader.next(reader.cursor).log_probs_V).all()

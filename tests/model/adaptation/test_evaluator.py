"""Score, then learn: against dynamic evaluation by hand, and for every way to cut a stream.

Pitfalls of the literature that have no test of their own here: the weights at which a stream starts are
those the model was loaded with, and a checkpoint holds the average where there is one (30); there is no
running second moment and no optimiser (34); dropout and clipping have no place in the evaluator (25, 27).
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlstm_model.scoring import TokenScores, score

from rlstm_model.adaptation.calibration import Calibration, measure_rms
from rlstm_model.adaptation.evaluator import DynamicEvaluator, next_token, score_after
from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.vocab import InvalidToken

BOS, SEGMENT = 1, 4
tokens = st.integers(0, 10)
streams = st.lists(tokens, min_size=1, max_size=26)
few = settings(max_examples=12, deadline=None)


SHAPES = [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rounds": 1, "mogrifier_rank": 0}]
RULES = [
    {"decay": 0.1},
    {"rule": "sgd", "rate": 0.1, "decay": 0.05},
    {"rate": 0.05, "reduction": "sum", "epsilon": 0.5},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_dynamic_evaluation_by_hand(
    make_evaluator, tiny_model, calibration, by_hand, text, monkeypatch, observe, dtype, shape, rule
):
    """Scores, gradients and deltas are those of Krause's way (pitfalls 26, 28, 31, 32, 33)."""
    model, ids = tiny_model(dtype=dtype, **shape), text(23)
    gradients, original = [], FullFastWeights.learn

    def recorded(*arguments, **options):
        done = original(*arguments, **options)
        gradients.append(done.gradient_NP[0].clone())
        return done

    monkeypatch.setattr(FullFastWeights, "learn", recorded)
    parts, state = observe(make_evaluator(model, **rule), ids)
    expected = by_hand(model, calibration(model, **rule), ids)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
    for part, segment in zip(parts, expected, strict=True):
        torch.testing.assert_close(part.scores.logprobs, segment.logprobs.float(), rtol=1e-5, atol=1e-5)
    for part, gradient, segment in zip(parts, gradients, expected, strict=False):
        torch.testing.assert_close(gradient, segment.gradient_P, **close)
        torch.testing.assert_close(part.state.delta_KP[0], segment.delta_P, **close)
        assert part.gradient_norms == pytest.approx((float(segment.gradient_P.norm()),), rel=1e-4)
    assert len(gradients) == state.updates == len(ids) // SEGMENT
    assert state.delta_KP.dtype == dtype


@few
@given(streams, st.data())
def test_oracle_f_without_rate_and_decay_it_is_static(
    make_evaluator, tiny_model, observe_runs, logprobs, static_logprobs, ids, data
):
    """Rate 0 and decay 0: the adapted scores are the static ones and those of scoring, to the last bit."""
    model = tiny_model()
    still = make_evaluator(model, rate=0.0, decay=0.0)
    cut = data.draw(st.integers(0, len(ids)))
    parts, state = observe_runs(still, [(ids[:cut], True), (ids[cut:], True)])
    assert torch.equal(logprobs(parts), static_logprobs(parts))
    plain, plain_state, last = [], model.initial_state(1), BOS
    for part in parts:
        start = sum(map(len, plain))
        slice_ids = ids[start : start + len(part.scores)]
        scores, plain_state = score(model, slice_ids, state=plain_state, last=last)
        plain, last = [*plain, scores], slice_ids[-1]
    assert torch.equal(logprobs(parts), TokenScores.concatenate(plain).logprobs)
    assert torch.equal(state.now.state.h, plain_state.h.expand(-1, 2, -1))
    assert state.delta_KP is None
    whole, _ = score(model, ids, state=None, last=BOS)
    torch.testing.assert_close(logprobs(parts), whole.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"rate": 0.0, "decay": 0.5}, {"rate": 1e-30}], ids=str)
def test_oracle_f_by_the_learning_pass(make_evaluator, text, observe, logprobs, static_logprobs, options):
    """Steps that change nothing are taken, and the scores stay the static ones to the last bit."""
    parts, state = observe(make_evaluator(**options), text(23))
    assert state.updates == 5
    assert torch.equal(logprobs(parts), static_logprobs(parts))


def test_rate_scale_multiplies_the_rate(make_evaluator, text, observe, logprobs, static_logprobs):
    """Rate scale 3 under a third of the rate is the same rule."""
    one, other = make_evaluator(rate=0.02), make_evaluator(rate=0.06)
    first, _ = observe(one, text(23), one.start(rate_scale=3.0))
    second, _ = observe(other, text(23))
    torch.testing.assert_close(logprobs(first), logprobs(second), rtol=0, atol=1e-5)
    assert not torch.equal(logprobs(first), static_logprobs(first))


@few
@given(streams, st.data())
def test_oracle_g_the_future_never_changes_the_past(evaluator, observe, logprobs, ids, data):
    """Other tokens from any place on change no score before it, not in the last bit (pitfall 26)."""
    place = data.draw(st.integers(0, len(ids)))
    changed = ids[:place] + data.draw(st.lists(tokens, min_size=len(ids) - place, max_size=len(ids) - place))
    (one, _), (other, _) = observe(evaluator, ids), observe(evaluator, changed)
    assert torch.equal(logprobs(one)[:place], logprobs(other)[:place])


def test_a_segment_without_learning_tokens_takes_no_step(evaluator, text, observe):
    """No flagged token, no step, no decay; the recurrent state advances all the same."""
    _, learned = observe(evaluator, text(8))
    parts, state = observe(evaluator, text(12, seed=7), learned, learn=False)
    assert state.delta_KP is learned.delta_KP
    assert (state.position, state.updates, learned.updates) == (20, 2, 2)
    assert all(part.updates == 0 and part.gradient_norms == () and part.norm_ratio is None for part in parts)
    assert not torch.equal(state.now.state.h, learned.now.state.h)


def test_pitfall_37_what_may_not_be_learned_from_is_not(evaluator, text, observe, logprobs, static_logprobs):
    """A stream that is only read keeps no delta at all, and scores as the static model does."""
    parts, state = observe(evaluator, text(23), learn=False)
    assert state.delta_KP is None
    assert torch.equal(logprobs(parts), static_logprobs(parts))


@pytest.mark.parametrize("bad", [-1, 11, -100, 2**40])
@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("static", [True, False])
def test_ids_outside_the_vocabulary(evaluator, text, bad, place, static):
    """A bad id raises before anything is read, and says which it is; -100 is no target to be ignored."""
    ids = text(9)
    ids[place] = bad
    with pytest.raises(InvalidToken) as raised:
        evaluator.observe(evaluator.start(static=static), ids)
    assert (raised.value.index, raised.value.id) == (place, bad)


def test_alternatives(evaluator, text, observe):
    """``top`` alternatives come with the adapted scores, from both passes, best first."""
    parts, _ = observe(evaluator, text(10), top=3)
    scores = TokenScores.concatenate([part.scores for part in parts])
    assert scores.top_ids.shape == scores.top_logprobs.shape == (10, 3)
    assert (scores.top_logprobs.diff(dim=1) <= 0).all()
    for row, (token, rank) in enumerate(zip(text(10), scores.ranks.tolist(), strict=True)):
        assert (rank <= 3) == (token in scores.top_ids[row].tolist())


@pytest.mark.parametrize("cuts", [(23,), (3, 10, 10)])
def test_pitfall_23_the_temperature_is_in_all_that_is_scored(
    tiny_model, calibration, text, observe, logprobs, cuts
):
    """Adapted, static and read-ahead scores are at the temperature, whatever the cuts; 1 changes no bit."""
    model, ids = tiny_model(), text(23)
    cool = DynamicEvaluator(model, calibration(model), bos_id=BOS, temperature=0.7)
    state, parts, done = cool.start(), [], 0
    for cut in cuts:
        reader = cool.reader(state)
        ahead, _ = score_after(reader, reader.cursor, ids[done : done + 1])
        new, state = observe(cool, ids[done : done + cut], state)
        assert float(ahead.logprobs[0]) == pytest.approx(float(new[0].scores.logprobs[0]), abs=1e-6)
        parts, done = parts + new, done + cut
    expected, _ = score(model, ids, state=None, last=BOS, temperature=0.7)
    torch.testing.assert_close(torch.cat([part.static_logprobs for part in parts]), expected.logprobs)
    reader = cool.reader(cool.start())
    following = next_token(reader, reader.cursor)
    assert float(following.log_probs_V[ids[0]]) == pytest.approx(float(expected.logprobs[0]), abs=1e-6)
    plain, _ = observe(DynamicEvaluator(model, calibration(model), bos_id=BOS), ids)
    one, _ = observe(DynamicEvaluator(model, calibration(model), bos_id=BOS, temperature=1.0), ids)
    assert torch.equal(logprobs(plain), logprobs(one))
    assert not torch.allclose(logprobs(plain), logprobs(parts))


FOUR = [(0.5, 20), (1.0, 21), (2.0, 22), (4.0, 23)]


@pytest.fixture(scope="module")
def alone(make_evaluator, text, digest, observe, logprobs):
    """What each of four streams gets on an evaluator of its own: log-probabilities and its state's bits."""
    results = []
    for scale, seed in FOUR:
        evaluator = make_evaluator(decay=0.05)
        parts, state = observe(evaluator, text(21, seed=seed), evaluator.start(rate_scale=scale))
        results.append((logprobs(parts), digest(*state.tensors().values())))
    return results


@few
@given(st.lists(st.integers(0, 3), max_size=24))
def test_pitfall_36_streams_on_one_evaluator_do_not_mix(evaluator, alone, text, digest, logprobs, turns):
    """Four streams observed slice by slice in any order get what each gets alone, bit for bit."""
    running = [
        evaluator.observe(evaluator.start(rate_scale=scale), text(21, seed=seed)) for scale, seed in FOUR
    ]
    collected = [[] for _ in FOUR]
    for turn in [*turns, *(turn for _ in range(6) for turn in range(4))]:
        collected[turn] += [part for part in [next(running[turn], None)] if part is not None]
    for parts, (expected, bits) in zip(collected, alone, strict=True):
        assert torch.equal(logprobs(parts), expected)
        assert digest(*parts[-1].state.tensors().values()) == bits


def test_the_slow_weights_never_change(tiny_model, calibration, text, digest, observe):
    """After all that an evaluator can do, the model's weights have the same bits, and no gradients."""
    model = tiny_model()
    before = digest(*model.parameters())
    evaluator = DynamicEvaluator(model, calibration(model, decay=0.1), bos_id=BOS)
    _, state = observe(evaluator, text(23), evaluator.start(rate_scale=1e6))
    observe(evaluator, text(5), evaluator.restore(state.tensors(), state.header()))
    observe(evaluator, text(5), evaluator.reset(state, fast_weights=True, recurrent=True))
    reader = evaluator.reader(state)
    score_after(reader, reader.cursor, text(5))
    measure_rms(model, [text(9)], segment=4, reduction="mean", bos_id=BOS)
    assert digest(*model.parameters()) == before
    assert not any(weight.requires_grad or weight.grad is not None for weight in model.parameters())


def test_oracle_l_a_repeated_motif_is_learned(tiny_model, config, text, observe, logprobs, static_logprobs):
    """On a stream that repeats a motif, dynamic beats static by a wide margin, and more so at the end."""
    model = tiny_model(hidden_size=16, scale=0.3)
    rms_P, count = measure_rms(model, [text(400, seed=1)], segment=SEGMENT, reduction="mean", bos_id=BOS)
    settings = config(rate=0.01, num_fast_weights=len(rms_P), statistics_segments=count, max_norm_ratio=2.0)
    ids = text(10, seed=2) * 30
    parts, _ = observe(DynamicEvaluator(model, Calibration(config=settings, rms_P=rms_P), bos_id=BOS), ids)
    dynamic, static = -logprobs(parts), -static_logprobs(parts)
    assert static[-100:].mean() > 0.8 * math.log(11)
    assert dynamic.mean() < 0.6 * static.mean()
    assert dynamic[-100:].mean() < 0.1 * static[-100:].mean()

"""Inference after a stream: as observing would score, while the stream stays as it is."""

from dataclasses import replace

import pytest
import torch
from rlstm_model.adaptation.batch_items import ScoreChunk
from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.scoring import score

from rlstm_model.adaptation.evaluator import CHUNK, next_token, score_after
from rlstm_model.sampling import SamplingConfig, sample

NAN = float("nan")
# Without vector units torch's softmax gives a row other last bits alone than beside another.
ALONE_AS_BESIDE = 0.0 if torch.backends.cpu.get_cpu_capability() != "DEFAULT" else 1e-6
EXPERTS = [{"static": False}, {}, {"experts": 2}, {"experts": 4}]


@pytest.fixture(scope="module", params=[None, 2], ids=["full", "subspace"])
def evaluator(request, make_evaluator):
    return make_evaluator(rate=0.2, rank=request.param)


def steps(reader, cursor, ids):
    """Each token's log-probability by single steps, and the place after them."""
    found = []
    for token in ids:
        following = next_token(reader, cursor)
        assert following.log_probs_V.exp().sum() == pytest.approx(1.0, abs=1e-5)
        found.append(following.log_probs_V[token].float())
        cursor = following.after(token)
    return torch.stack(found), cursor


@pytest.mark.parametrize("expert_config", EXPERTS, ids=str)
@pytest.mark.parametrize("length", [0, 8, 10])
def test_reads_on_as_observing_would(evaluator, text, digest, observe, logprobs, expert_config, length):
    """Scores, states and mixture weights are those of observing within the segment; nothing is changed."""
    state = evaluator.start(**expert_config)
    for part in evaluator.observe(state, text(length)):
        state = part.state
    before, header = digest(*state.tensors().values()), state.header()
    reader, ids = evaluator.reader(state), text(4 - length % 4, seed=5)
    scored, after = score_after(reader, reader.cursor, ids)
    stepped, cursor = steps(reader, reader.cursor, ids)
    parts, observed = observe(evaluator, ids, state, learn=False)
    expected = logprobs(parts)
    torch.testing.assert_close(scored.logprobs, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(stepped, expected, rtol=0, atol=1e-5)
    for place in (after, cursor):
        mixed = observed.now.state.rows(observed.expert_config.mixed)
        torch.testing.assert_close(place.state, mixed, rtol=0, atol=1e-5)
        assert place.last == ids[-1]
        if observed.mixture is None:
            assert place.mixture is None
        else:
            torch.testing.assert_close(place.mixture, observed.mixture, rtol=0, atol=1e-5)
            assert int(place.mixture.tokens_N) == length + len(ids)
    assert (digest(*state.tensors().values()), state.header()) == (before, header)


@pytest.mark.parametrize("expert_config", EXPERTS, ids=str)
@pytest.mark.parametrize("length", [0, 10])
def test_the_static_row_reads_along(evaluator, text, expert_config, length):
    """What observing gives as static, and a plain reading from there; no other number moves by a bit."""
    state = evaluator.start(**expert_config)
    for part in evaluator.observe(state, text(length)):
        state = part.state
    ids = tuple(text(4 - length % 4, seed=5))
    plain, reader = evaluator.reader(state), evaluator.reader(state, static=True)
    without, found = (run_batch([ScoreChunk(own, own.cursor, ids)])[0] for own in (plain, reader))
    (observed,) = evaluator.observe(state, ids, learn=False)
    assert torch.equal(found.scores.logprobs, without.scores.logprobs)
    one, other = (next_token(own, cursor) for own, (_, cursor, _) in ((plain, without), (reader, found)))
    torch.testing.assert_close(one.log_probs_V, other.log_probs_V, rtol=0, atol=ALONE_AS_BESIDE)
    assert without.static_logprobs is None
    if not state.expert_config.static:
        assert found.static_logprobs is None
        return
    assert torch.equal(found.static_logprobs, observed.static_logprobs)
    first = state.now.state.rows(slice(1))
    expected, after = score(evaluator.model, ids, state=first, last=state.now.last)
    torch.testing.assert_close(found.static_logprobs, expected.logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.cursor.state.rows(slice(1)), after, rtol=0, atol=1e-5)


@pytest.mark.parametrize("expert_config", EXPERTS, ids=str)
def test_long_texts_are_read_in_chunks(evaluator, text, observe, expert_config):
    """A text of several chunks has the scores that single steps give, and as many alternatives."""
    _, state = observe(evaluator, text(8), evaluator.start(**expert_config))
    reader, ids = evaluator.reader(state), text(2 * CHUNK + 3, seed=6)
    scores, after = score_after(reader, reader.cursor, ids, top=2)
    stepped, cursor = steps(reader, reader.cursor, ids)
    torch.testing.assert_close(scores.logprobs, stepped, rtol=0, atol=2e-5)
    torch.testing.assert_close(after.state, cursor.state, rtol=0, atol=1e-5)
    assert scores.top_ids.shape == (len(ids), 2)


def test_the_weights_follow_the_text(evaluator, text, observe):
    """The mixture leans to the expert that gave the chosen tokens more; another token tells another tale."""
    _, state = observe(evaluator, text(4) * 6, evaluator.start(experts=4))
    reader = evaluator.reader(state)
    following = next_token(reader, reader.cursor)
    logprobs_K = following.experts_1KV[0]
    for token in range(11):
        before, after = (cursor.mixture.weights_NK[0] for cursor in (reader.cursor, following.after(token)))
        likelihoods = before * logprobs_K[:, token].double().exp()
        share = 1 / (int(reader.cursor.mixture.tokens_N) + 2)
        expected = (1 - share) * likelihoods / likelihoods.sum() + share / 4
        torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-12)


def test_a_broken_expert_does_not_speak(evaluator, text, observe):
    """Inference cannot restart an expert: the others are mixed as if they were all, and sampling goes on."""
    _, state = observe(evaluator, text(8), evaluator.start(experts=4))
    delta = state.delta_KP.clone()
    delta[1] = NAN
    reader = evaluator.reader(replace(state, delta_KP=delta))
    following = next_token(reader, reader.cursor)
    assert following.log_probs_V.isfinite().all()
    assert following.log_probs_V.exp().sum() == pytest.approx(1.0, abs=1e-6)
    assert 0 <= sample(following.log_probs_V, SamplingConfig(), 0.5) < 11
    after = following.after(3)
    assert after.mixture.weights_NK[0, 2] == pytest.approx(1 / (8 + 2) / 4)
    ids = text(3)
    scores, _ = score_after(reader, reader.cursor, ids)
    stepped, _ = steps(reader, reader.cursor, ids)
    torch.testing.assert_close(scores.logprobs, stepped, rtol=0, atol=1e-5)


def test_a_single_expert_that_is_no_number_raises(evaluator, text, observe):
    """Without another expert there is no answer."""
    _, state = observe(evaluator, text(8), evaluator.start())
    reader = evaluator.reader(replace(state, delta_KP=torch.full_like(state.delta_KP, NAN)))
    with pytest.raises(ArithmeticError):
        score_after(reader, reader.cursor, text(3))
    with pytest.raises(ArithmeticError):
        sample(next_token(reader, reader.cursor).log_probs_V, SamplingConfig(), 0.5)

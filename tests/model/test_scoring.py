"""Scores: against brute force, and the same however the text is cut."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rlstm_model.scoring import (
    LOGPROB_FLOOR,
    TokenScores,
    score,
    score_logits,
    score_text,
)
from torch.utils._python_dispatch import TorchDispatchMode

from rlstm_model.vocab import ByteVocab, InvalidToken, WordVocab

IDS = st.lists(st.integers(0, 10), min_size=1, max_size=30)


def _assert_same(one, other, tolerance=1e-5):
    torch.testing.assert_close(one.logprobs, other.logprobs, atol=tolerance, rtol=0)
    torch.testing.assert_close(one.entropies, other.entropies, atol=tolerance, rtol=0)
    assert torch.equal(one.ranks, other.ranks)
    if one.top_ids is not None:
        assert torch.equal(one.top_ids, other.top_ids)
        torch.testing.assert_close(one.top_logprobs, other.top_logprobs, atol=tolerance, rtol=0)


def _brute_force(row, target):
    """log-probability, rank and entropy from the definitions, with exact ties by id."""
    row = row.log_softmax(0).float()
    better = sum(1 for id_, lp in enumerate(row.tolist()) if (-lp, id_) < (-row[target].item(), target))
    entropy = -sum(lp * math.exp(lp) for lp in row.tolist())
    return row[target].item(), better + 1, entropy


@given(st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 4.0]), min_size=2, max_size=9), st.data())
def test_a_distributions_scores_follow_the_definitions(logits, data):
    """With many exact ties: they go to the lower id, in the rank and among the alternatives."""
    target = data.draw(st.integers(0, len(logits) - 1))
    row = torch.tensor(logits)
    scores = score_logits(row[None], torch.tensor([target]), top=len(logits))
    logprob, rank, entropy = _brute_force(row, target)
    assert scores.logprobs.item() == pytest.approx(logprob, abs=1e-6)
    assert scores.ranks.item() == rank
    assert scores.entropies.item() == pytest.approx(entropy, abs=1e-5)
    assert scores.top_ids[0].tolist() == sorted(range(len(logits)), key=lambda id_: (-logits[id_], id_))
    assert scores.top_ids[0, rank - 1].item() == target
    assert scores.top_logprobs[0, rank - 1].item() == scores.logprobs.item()


def test_scores_of_a_text_are_those_of_its_steps(random_model):
    """Each token under the distribution after all tokens before it, found one step at a time."""
    model = random_model(dtype=torch.float32)
    ids, state, previous = [3, 1, 4, 1, 5, 9, 2, 6], model.initial_state(1), 10
    scores, _ = score(model, ids, state=None, last=10)
    for index, target in enumerate(ids):
        features, state = model.step(torch.tensor([previous]), state)
        logprob, rank, entropy = _brute_force(model.logits(features)[0], target)
        assert scores.logprobs[index].item() == pytest.approx(logprob, abs=1e-5)
        assert scores.ranks[index].item() == rank
        assert scores.entropies[index].item() == pytest.approx(entropy, abs=1e-5)
        previous = target


@given(ids=IDS, chunk=st.integers(1, 31), cut=st.integers(1, 30))
def test_chunks_and_cuts_change_nothing(random_model, ids, chunk, cut):
    """Any chunk size, and any cut with state and last token carried on, give the same scores."""
    model = random_model(dtype=torch.float32)
    whole, _ = score(model, ids, state=None, last=0, top=3)
    chunked, _ = score(model, ids, state=None, last=0, top=3, chunk=chunk)
    _assert_same(chunked, whole)
    first, second = ids[:cut], ids[cut:]
    parts, state = score(model, first, state=None, last=0, top=3)
    if second:
        rest, _ = score(model, second, state=state, last=first[-1], top=3)
        parts = TokenScores.concatenate([parts, rest])
    _assert_same(parts, whole)


def test_the_state_after_scoring_has_not_read_the_last_token(random_model):
    """It is the state after ``last`` and all tokens but the final one."""
    model = random_model()
    _, state = score(model, [3, 1, 4], state=None, last=10, chunk=2)
    expected = model.initial_state(1)
    for token in (10, 3, 1):
        _, expected = model.step(torch.tensor([token]), expected)
    torch.testing.assert_close(state.h, expected.h, atol=1e-12, rtol=0)
    torch.testing.assert_close(state.c, expected.c, atol=1e-12, rtol=0)
    assert not state.h.requires_grad


def test_future_tokens_never_change_a_past_score(random_model):
    """Shuffling what comes later leaves every earlier score as it was, to the last bit."""
    model = random_model(dtype=torch.float32)
    before, _ = score(model, [1, 2, 3, 4, 5, 6], state=None, last=0)
    after, _ = score(model, [1, 2, 3, 6, 4, 5], state=None, last=0)
    assert torch.equal(before.logprobs[:3], after.logprobs[:3])
    assert torch.equal(before.entropies[:4], after.entropies[:4])


def test_an_impossible_token_scores_the_floor(random_model):
    """Log-probabilities stay finite and never rise above 0."""
    logits = torch.tensor([[0.0, -math.inf, -math.inf], [1e6, 0.0, 0.0]])
    scores = score_logits(logits, torch.tensor([2, 1]), top=3)
    assert scores.logprobs.tolist() == [LOGPROB_FLOOR, LOGPROB_FLOOR]
    assert scores.ranks.tolist() == [3, 2]
    assert scores.entropies.tolist() == [0.0, 0.0]
    assert scores.top_logprobs.tolist() == [[0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]] * 2


def test_log_probabilities_alone(random_model):
    """Without ranks and entropies log-probabilities have the same bits, and bad ones still raise."""
    model, ids = random_model(dtype=torch.float32), [1, 2, 3, 4, 5]
    whole, _ = score(model, ids, state=None, last=0, top=2)
    lean, _ = score(model, ids, state=None, last=0, logprobs_only=True)
    assert torch.equal(lean.logprobs, whole.logprobs)
    assert lean.ranks.tolist() == [0] * 5
    assert bool(lean.entropies.isnan().all())
    with pytest.raises(ArithmeticError, match="not finite"):
        score_logits(torch.tensor([[0.0, math.nan]]), torch.tensor([0]), logprobs_only=True)


@pytest.mark.parametrize("shape", [{}, {"softmax_components": 2}], ids=str)
def test_pitfall_23_a_temperature_multiplies_the_logits(random_model, shape):
    """Scores at a temperature are those of the logits times it, in each component of a mixture."""
    model, ids = random_model(**shape), [1, 2, 3, 4, 5]
    features, _ = model(torch.tensor([0, *ids[:-1]])[:, None], model.initial_state(1))
    expected = model.log_probs(features[:, 0], 0.6)[range(5), ids]
    scores, _ = score(model, ids, state=None, last=0, temperature=0.6)
    torch.testing.assert_close(scores.logprobs, expected.float())
    if not shape:
        by_hand = torch.log_softmax(0.6 * model.logits(features[:, 0]), -1)[range(5), ids]
        torch.testing.assert_close(expected, by_hand)
    assert torch.equal(
        score(model, ids, state=None, last=0, temperature=1.0)[0].logprobs,
        score(model, ids, state=None, last=0)[0].logprobs,
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_distribution_is_an_error_not_a_score(bad):
    """One bad logit spoils its row, whichever token is asked for."""
    with pytest.raises(ArithmeticError, match="not finite"):
        score_logits(torch.tensor([[0.0, 1.0], [bad, 1.0]]), torch.tensor([1, 1]))


@pytest.mark.parametrize("bad", [-1, 11])
def test_an_id_outside_the_vocabulary_is_refused_by_position(random_model, bad):
    """Among the tokens, and as the last token."""
    model = random_model()
    with pytest.raises(InvalidToken) as caught:
        score(model, [1, 2, bad], state=None, last=0)
    assert (caught.value.index, caught.value.id) == (2, bad)
    with pytest.raises(InvalidToken):
        score(model, [1], state=None, last=bad)


def test_nothing_to_score_is_an_error(random_model):
    """No tokens have no scores."""
    with pytest.raises(ValueError, match="no tokens"):
        score(random_model(), [], state=None, last=0)
    with pytest.raises(ValueError, match="no scores"):
        TokenScores.concatenate([])


class _LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_grows_with_the_length_of_the_text(random_model):
    """Eight times the text makes no larger matrix: nothing of size T x V, nor T x H, ever exists."""
    model = random_model(vocab_size=500, hidden_size=16, num_layers=1, mogrifier_rounds=0)
    largest = []
    for length in (200, 1600):
        with _LargestTensor() as seen:
            score(model, [7] * length, state=None, last=0, top=2, chunk=50)
        largest.append(seen.elements)
    assert largest[0] == largest[1]


_PEAK = """
import resource, sys, torch
from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.scoring import score
model = LanguageModel(ModelConfig(vocab_size=256, hidden_size=8, num_layers=1, mogrifier_rounds=0))
score(model, torch.full((1000,), 7), state=None, last=10, top=2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
score(model, torch.full((200_000,), 7), state=None, last=10, top=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_200_000_tokens_take_no_more_memory_than_their_scores():
    """The process's peak grows by less than 40 MB; the logits of the text alone would be 205 MB."""
    done = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 40e6


def test_totals_of_a_text(random_model):
    """Bits per byte counts UTF-8 bytes, perplexity counts tokens, both from the same sum."""
    model = random_model(vocab_size=256, dtype=torch.float32)
    text = "naïve café"
    scores = score_text(model, ByteVocab(), text, top=1)
    tokens, _ = score(model, list(text.encode()), state=None, last=10, top=1)
    _assert_same(scores.tokens, tokens)
    assert scores.logprob == pytest.approx(float(tokens.logprobs.double().sum()))
    assert scores.bits_per_byte == pytest.approx(-scores.logprob / math.log(2) / 12)
    assert scores.perplexity == pytest.approx(math.exp(-scores.logprob / 12))
    assert (scores.bytes, scores.words, scores.encoded.unknown) == (12, 2, 0)


def test_a_word_models_bits_are_spread_over_the_texts_bytes(random_model):
    """White space that makes no token still counts as text; unknown words are counted."""
    vocab = WordVocab.build("the cat sat on the mat\n")
    model = random_model(vocab_size=vocab.size)
    scores = score_text(model, vocab, "  the dog\n")
    assert len(scores.tokens) == 3
    assert scores.encoded.unknown == 1
    assert scores.bits_per_byte == pytest.approx(-scores.logprob / math.log(2) / 10)
    with pytest.raises(ValueError, match="no tokens"):
        score_text(model, vocab, "  ")

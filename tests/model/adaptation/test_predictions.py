"""Many texts' rows together: who is mixed, who is a reference, and who computed nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlstm_model.adaptation.predictions import Place, Predictions, Text
from rlstm_model.scoring import score_logits

from rlstm_model.adaptation import mixture, predictions
from rlstm_model.adaptation.mixture import MixtureState

NAN, INF = float("nan"), float("inf")
TOKENS, VOCAB = 7, 11
COLUMNS = ("logprobs", "ranks", "entropies", "top_ids", "top_logprobs")


@pytest.fixture
def drawn():
    """Makes logits of R rows, and the tokens that came."""

    def make(rows, dtype=torch.float32):
        generator = torch.Generator().manual_seed(rows)
        logits = 2 * torch.randn(TOKENS, rows, VOCAB, generator=generator, dtype=dtype)
        return logits, torch.randint(VOCAB, (TOKENS,), generator=generator)

    return make


def score(logits, targets, count=1, *, static=False, before=None, **options):
    """One text that a whole pass is of; its last ``count`` rows are mixed."""
    places = [Place(0, row) for row in range(logits.shape[1])]
    if count > 1 and before is None:
        before = MixtureState.start(1, count)
    text = Text(targets.tolist(), places, count, static, before, **options)
    (found,) = Predictions.of([[logits]]).score([text])
    return found


def equal_scores(found, expected):
    for name in COLUMNS:
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None and other is None) or torch.equal(one, other), name


@pytest.mark.parametrize("static", [True, False])
def test_a_single_expert_is_its_own_row(drawn, static):
    """Its scores are those of its logits to the last bit, and so are those of the row beside it."""
    logits, targets = drawn(1 + static)
    found = score(logits, targets, static=static, top=3)
    equal_scores(found.scores, score_logits(logits[:, -1], targets, 3))
    assert found.mixture is None
    if static:
        assert torch.equal(found.static_logprobs, score_logits(logits[:, 0], targets).logprobs)
    else:
        assert found.static_logprobs is None


@pytest.mark.parametrize("count", [2, 4])
def test_several_are_mixed_by_hand(drawn, count):
    """Scores, ranks, entropies and alternatives are of sum pi p, with pi as it was before each token."""
    logits, targets = drawn(count, torch.float64)
    weights, mixed = MixtureState.start(1, count), []
    for logits_RV, target in zip(logits, targets, strict=True):
        probabilities = logits_RV.softmax(-1)
        mixed.append((weights.weights_NK[0, :, None] * probabilities).sum(0).log())
        weights = mixture.read(weights, probabilities[:, target].log()[None, None]).state
    found = score(logits, targets, count, static=True, top=3)
    expected = score_logits(torch.stack(mixed), targets, 3)
    torch.testing.assert_close(found.scores.logprobs, expected.logprobs)
    torch.testing.assert_close(found.scores.entropies, expected.entropies)
    assert torch.equal(found.scores.ranks, expected.ranks)
    assert torch.equal(found.scores.top_ids, expected.top_ids)
    torch.testing.assert_close(found.mixture, weights)
    assert torch.equal(found.static_logprobs, score_logits(logits[:, 0], targets).logprobs)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("token", [0, TOKENS - 1])
def test_a_row_with_one_bad_logit_is_broken(drawn, value, token):
    """Anywhere in the vocabulary, at any token; the other rows are not, and go on without it."""
    logits, targets = drawn(4)
    logits[token, 2, (targets[token] + 1) % VOCAB] = value
    found = score(logits, targets, 4)
    assert found.broken == [False, False, True, False]
    assert found.scores.logprobs.isfinite().all()


def test_an_impossible_token_is_not_broken(drawn):
    """A probability of 0 is a number: its score is the floor, and the mixture's is not."""
    logits, targets = drawn(2)
    logits[0, 0, targets[0]] = -INF
    found = score(logits, targets, 2, static=True)
    assert found.broken == [False, False]
    assert found.static_logprobs[0] == -9999.0
    assert found.scores.logprobs[0] > -20


@st.composite
def rounds(draw):
    """Texts of rows in two passes of two windows each, of which some tokens may be left out."""
    texts = []
    for _ in range(draw(st.integers(1, 9))):
        count, static = draw(st.sampled_from([(1, False), (1, True), (2, True), (4, True)]))
        skipped = draw(st.integers(0, 3))
        places = [
            Place(draw(st.integers(0, 1)), draw(st.integers(0, 3)), skipped * (row > 0))
            for row in range(count + (count == 1 and static))
        ]
        targets = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=TOKENS - 3))
        before = MixtureState.start(1, count) if count > 1 else None
        options = (draw(st.sampled_from([0, 1, 3])), draw(st.booleans()))
        texts.append(Text(targets, places, count, static, before, *options))
    return texts


@settings(max_examples=40, deadline=None)
@given(rounds(), st.sampled_from([1, 200, 1 << 20]))
def test_texts_score_as_each_alone_to_the_last_bit(texts, elements):
    """Whatever their lengths, rows and wishes, and however few are scored at once."""
    generator = torch.Generator().manual_seed(3)
    passes = [
        [torch.randn(tokens, rows, VOCAB, generator=generator) for tokens, rows in ((4, 8), (3, 4))]
        for _ in range(2)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(predictions, "_ELEMENTS_AT_ONCE", elements)
        together = Predictions.of(passes).score(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = Predictions.of(passes).score([text])
        if text.logprobs_only:
            assert torch.equal(found.scores.logprobs, alone.scores.logprobs)
        else:
            equal_scores(found.scores, alone.scores)
        rows = [
            torch.cat(
                [window[:, place.row] for window in passes[place.number] if place.row < window.shape[1]]
            )
            for place in text.places
        ]
        own = torch.stack(
            [
                logits[place.skipped : place.skipped + len(text.targets)]
                for logits, place in zip(rows, text.places, strict=True)
            ],
            1,
        )
        by_hand = score(own, torch.tensor(text.targets), text.experts, static=text.static)
        torch.testing.assert_close(found.scores.logprobs, by_hand.scores.logprobs, rtol=0, atol=1e-6)
        if text.static:
            assert torch.equal(found.static_logprobs, by_hand.static_logprobs)
        if text.before is not None:
            assert all(map(torch.equal, found.mixture, alone.mixture))


@pytest.fixture
def threads():
    """Two of them, as a server may have."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 4])
def test_a_single_token_of_a_large_vocabulary_has_the_bits_that_it_has_among_others(threads, count):
    """Threads share a sum where it is the only one: there is never only one."""
    generator = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(1, 3 * count, 50_001, generator=generator)
    before = MixtureState.start(1, count) if count > 1 else None
    texts = [
        Text([token], [Place(0, count * token + row) for row in range(count)], count, False, before)
        for token in range(3)
    ]
    together = Predictions.of([[logits]]).score(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = Predictions.of([[logits]]).score([text])
        equal_scores(found.scores, alone.scores)

"""Scores for a beam search: what a stream would say, and in the hands of two decoders."""

from itertools import pairwise

import numpy as np
import pytest

import rlstm_model
from rlstm_model import BeamScorer

TEXT = "the quick brown fox jumps over the lazy dog\n" * 3
LETTERS = "abc "


@pytest.fixture
def stream(tiny_checkpoint):
    """A stream that has learned a text."""
    made = rlstm_model.load(tiny_checkpoint).stream(adapt="weights")
    made.observe(TEXT[:128])  # whole segments, so that nothing is learned within the next few tokens
    return made


@pytest.mark.parametrize("parts", [["the fox\n"], ["the", " fox", "\n"], ["", "the fox", "\n"]])
def test_a_text_costs_what_the_stream_says(stream, parts):
    """However it is cut; branches of one state disturb nothing, and the stream stays as it is."""
    scorer = BeamScorer(stream)
    state, total = scorer.start(), 0.0
    for part in parts:
        scorer.score(state, " another way to go on")
        last = state
        state, nats = scorer.advance(state, part)
        assert nats == scorer.score(last, part)
        total += nats
    if parts[-1] == "\n":
        assert scorer.finish(last) == scorer.score(last, "\n")
    assert total == pytest.approx(stream.observe("the fox\n").scores.total, abs=1e-4)


def test_a_search_begins_after_what_the_stream_has_read(tiny_checkpoint):
    """A winner that is observed is cheap the next time; a search that has begun stays where it was."""
    stream = rlstm_model.load(tiny_checkpoint).stream()
    scorer = BeamScorer(stream)
    begun = scorer.start()
    before = scorer.score(begun, "zyx zyx")
    stream.observe("zyx zyx\n" * 4)
    assert scorer.score(begun, "zyx zyx") == before
    assert scorer.score(scorer.start(), "zyx zyx") > before + 5


def emission(frames, seed=1):
    """Log-probabilities [T, V] of letters and, last, a blank."""
    logits = np.random.default_rng(seed).normal(scale=2.0, size=(frames, len(LETTERS) + 1))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def of_text(scorer, text):
    """What a text costs, with the line's end."""
    state, nats = scorer.advance(scorer.start(), text)
    return nats + scorer.finish(state)


def test_pyctcdecode(stream):
    """Words by words: what the decoder adds for a text is what the scorer says of it."""
    pyctcdecode = pytest.importorskip("pyctcdecode")
    scorer = BeamScorer(stream)

    class Words(pyctcdecode.language_model.AbstractLanguageModel):
        order = 3

        def get_start_state(self):
            self.begun = scorer.start()
            return self.begun

        def score_partial_token(self, partial_token):
            return 0.0

        def score(self, prev_state, word, is_last_word=False):
            state, nats = scorer.advance(prev_state, word if prev_state is self.begun else f" {word}")
            return nats + (scorer.finish(state) if is_last_word else 0.0), state

    alphabet = pyctcdecode.alphabet.Alphabet.build_alphabet([*LETTERS, ""])
    decoder = pyctcdecode.BeamSearchDecoderCTC(alphabet, Words())
    beams = decoder.decode_beams(emission(12), beam_width=8)
    assert len(beams) > 1
    for text, _, _, acoustic, total in beams:
        assert total - acoustic == pytest.approx(of_text(scorer, text), abs=1e-3), text


def test_the_decoder_of_torchaudio(stream):
    """Its `CTCDecoderLM` is this class of flashlight's; tokens are letters."""
    flashlight = pytest.importorskip("flashlight.lib.text.decoder")
    scorer = BeamScorer(stream)

    class Letters(flashlight.LM):
        def __init__(self):
            super().__init__()
            self.known = {}

        def start(self, start_with_nothing):
            state = flashlight.LMState()
            self.known = {state: (scorer.start(), 0.0)}
            return state

        def score(self, state, index):
            after = state.child(index)
            if after not in self.known:
                self.known[after] = scorer.advance(self.known[state][0], LETTERS[index])
            return after, self.known[after][1]

        def finish(self, state):
            return state, scorer.finish(self.known[state][0])

    options = flashlight.LexiconFreeDecoderOptions(
        beam_size=8,
        beam_size_token=len(LETTERS) + 1,
        beam_threshold=50.0,
        lm_weight=1.0,
        sil_score=0.0,
        log_add=False,
        criterion_type=flashlight.CriterionType.CTC,
    )
    blank, given, letters = len(LETTERS), emission(12), Letters()
    decoder = flashlight.LexiconFreeDecoder(options, letters, LETTERS.index(" "), blank, [])
    results = decoder.decode(given.ctypes.data, *given.shape)
    assert len(results) > 1
    for result in results:
        text = "".join(
            LETTERS[token]
            for before, token in pairwise(result.tokens[:-1])  # one a frame, after the beginning's
            if token not in (before, blank)
        )
        assert result.lmScore == pytest.approx(of_text(scorer, text), abs=1e-3), text

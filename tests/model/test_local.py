"""The model as a library: what a notebook sees."""

import math

import numpy as np
import pytest

import rlstm_model
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.sampling import SamplingConfig

TEXT = "the quick brown fox jumps over the lazy dog\n" * 3


@pytest.fixture
def model(tiny_checkpoint):
    """The tiny model, loaded."""
    return rlstm_model.load(tiny_checkpoint)


def test_a_text_is_scored_by_the_model_as_loaded(model):
    """Bits per byte are the sum of the tokens' log-probabilities in another unit."""
    scores = model.score(TEXT)

    expected = -float(scores.tokens.logprobs.sum(dtype=np.float64)) / math.log(2) / len(TEXT)
    assert scores.bits_per_byte == pytest.approx(expected)


def test_a_stream_is_the_evaluator(model):
    """Text in pieces gives the evaluator's own scores, and the gain is the difference of the two losses."""
    parameters = model.checkpoint.parameters
    calibration = load_calibration(model.checkpoint.adaptation_file, parameters.config).choose()
    evaluator = DynamicEvaluator.of(parameters, calibration, bos_id=model.vocab.bos_id)
    start = evaluator.start(experts=2, adapt="both")
    expected = [part.scores.logprobs for part in evaluator.observe(start, list(TEXT.encode()))]

    stream = model.stream()
    parts = [stream.observe(TEXT[start : start + 25]) for start in range(0, len(TEXT), 25)]

    found = np.concatenate([part.scores.logprobs for part in parts])
    assert found.tobytes() == np.concatenate(expected).tobytes()
    assert sum(part.updates for part in parts) > 0
    for part in parts:
        assert part.gain_bits == pytest.approx(part.static_bits - part.bits)
        assert part.bits_per_byte == pytest.approx(part.bits / part.bytes)
        assert part.static_bits_per_byte == pytest.approx(part.static_bits / part.bytes)


@pytest.mark.parametrize(("adapt", "weights"), [("weights", 1), ("memory", 2), ("both", 3)])
def test_a_stream_adapts_by_what_it_is_asked_to(model, adapt, weights):
    """And knows a text that comes back better than one that never adapts."""
    stream = model.stream(adapt=adapt)
    text = "the sea was calm and the ship was cold. " * 4
    first, second = stream.observe(text), stream.observe(text)
    assert len(stream.state.weights) == weights
    assert second.bits < first.bits
    assert second.gain_bits > first.gain_bits


def test_an_old_state_can_be_kept_and_come_back_to(model):
    """A stream's state is a value: reading on from it twice gives the same."""
    stream = model.stream()
    stream.observe(TEXT)
    kept = stream.state
    first = stream.observe(TEXT).bits
    stream.state = kept

    assert stream.observe(TEXT).bits == first


def test_reading_without_learning_takes_no_step(model):
    """`learn=False` scores and moves on."""
    observed = model.stream().observe(TEXT, learn=False)

    assert observed.updates == 0
    assert observed.gain_bits == 0


@pytest.mark.parametrize("make", ["model", "stream"])
def test_generation_is_reproducible_and_changes_nothing(model, make):
    """The same seed gives the same text; another seed another; the stream stays where it was."""
    stream = model.stream()
    stream.observe(TEXT)
    before = stream.state

    def generate(seed):
        pieces = stream.generate(40, seed=seed) if make == "stream" else model.generate("the ", 40, seed=seed)
        return "".join(pieces)

    assert generate(1) == generate(1)
    assert generate(1) != generate(2)
    assert stream.state is before


def test_greedy_generation_takes_the_most_probable_token(model):
    """Temperature 0 from an untouched stream equals the model as loaded."""
    greedy = SamplingConfig(temperature=0.0)

    from_stream = "".join(model.stream().generate(20, sampling=greedy))

    assert from_stream == "".join(model.generate("", 20, sampling=greedy))


def test_an_empty_text_is_refused(model):
    """There is nothing to score or to observe."""
    with pytest.raises(ValueError, match="no scores"):
        model.score("")
    with pytest.raises(ValueError, match="no scores"):
        model.stream().observe("")


def test_a_model_without_calibration_says_what_to_do(model, tmp_path):
    """Scoring works; a stream does not, and the message names the file."""
    rlstm_model.local.checkpoints.save(tmp_path / "bare", model.checkpoint.parameters, model.vocab)
    bare = rlstm_model.load(tmp_path / "bare")

    assert bare.score(TEXT).bits_per_byte > 0
    with pytest.raises(CheckpointError, match=r"run rlstm calibrate .*bare --corpus TEXT"):
        bare.stream()

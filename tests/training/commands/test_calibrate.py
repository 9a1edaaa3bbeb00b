"""What ``rlstm calibrate`` is asked for, and with what it searches."""

import numpy as np
import pytest

from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.checkpoint import ADAPTATION, load
from rlstm_training.evaluation.measurements import Statistics, cores_of, most_fast_weights

READING = ["--on", "three", "--length", 100, "--heads", 1, "--segments", 2]
GRID = ["--rate", 1e-3, "--decay", 0, "--epsilon", 1, "--segment", 20]


@pytest.fixture
def calibrate(rlstm, trained, own_folder):
    """Types the command with few and quick trials; gives the answer, and the rules' kinds and sizes."""

    def call(*words):
        done = rlstm("calibrate", trained, "--corpus", own_folder, *READING, *GRID, *words)
        if done.exit_code:
            return done, None
        checkpoint = load(trained)
        choices = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choices
        return done, [(choice.kind, choice.num_fast_weights) for choice in choices]

    return call


def test_the_served_subspace_is_the_usual(calibrate, trained):
    """The embedding and the softmax within 128 axes, and all biases; full weights where asked for."""
    done, rules = calibrate("--kind", "subspace", "--kind", "full")
    config = load(trained).parameters.config
    served = most_fast_weights(cores_of(config, Statistics(rank=160)), 128, cells=False)
    assert rules == [("subspace", served), ("full", config.num_parameters)]
    assert f"subspace, {served:,} fast weights, 2 experts\n" in done.output
    assert f"full, {config.num_parameters:,} fast weights\n" in done.output
    assert "regret" in done.output


def test_a_text_is_enough_and_a_short_one_says_what_is_needed(rlstm, trained, tmp_path):
    """By the model's own vocabulary, its last tenth to choose on; where it is refused nothing is written."""
    text = tmp_path / "text.txt"
    for lines, says in ((10, "has 41 bytes, but 100 are needed, a text of 1,000"), (40, "2,000 are needed")):
        text.write_text("so it was, and so it was; so it was now.\n" * lines)
        few = ["--length", 100, "--heads", 10, "--segments", 40, *GRID]
        done = rlstm("calibrate", trained, "--corpus", text, *few)
        assert done.exit_code == 2
        assert says in done.stderr
        assert load(trained).adaptation_file is None
    text.write_text("so it was, and so it was; so it was now.\n" * 90)
    done = rlstm("calibrate", trained, "--corpus", text, *few)
    assert done.exit_code == 0, done.output
    checkpoint = load(trained)
    rules = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choices
    assert [rule.kind for rule in rules] == ["subspace"]


def test_other_kinds_and_sizes_are_found_when_asked_for(calibrate, trained):
    """In that order."""
    words = ["--kind", "output_bias", "--kind", "subspace"]
    _, rules = calibrate(*words, "--fast-weights", 100, "--fast-weights", 50)
    assert rules == [("output_bias", 256), ("subspace", 100), ("subspace", 50)]


@pytest.mark.parametrize(
    ("words", "option", "says"),
    [
        (["--kind", "dense"], "--kind", "'dense'"),
        (["--fast-weights", 10**8], "--fast-weights", "fast weights at most"),
        (["--rank", 1, "--fast-weights", 10**5], "--fast-weights", "a subspace of"),
        (["--experts", 3], "--experts", "'1', '2', '4'"),
        (["--first"], "--first", "--add"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(calibrate, trained, words, option, says):
    """The option is named, and no file is written."""
    done, _ = calibrate(*words)
    assert done.exit_code == 2
    assert option in done.stderr
    assert says in done.stderr
    assert load(trained).adaptation_file is None


def test_a_rule_is_added_to_those_there_are(calibrate, trained):
    """--add keeps statistics, rules and default; what has the kind and size of one takes its place."""
    _, before = calibrate("--kind", "subspace", "--fast-weights", 50)
    stored = load_calibration(trained / ADAPTATION, load(trained).parameters.config)
    _, after = calibrate("--add", "--kind", "output_bias", "--kind", "subspace", "--fast-weights", 50)
    assert after == [*before, ("output_bias", 256)]
    found = load_calibration(trained / ADAPTATION, load(trained).parameters.config)
    rms = found.statistics.rms
    assert all(np.array_equal(rms[name], part) for name, part in stored.statistics.rms.items())
    _, last = calibrate("--add", "--first", "--kind", "subspace", "--fast-weights", 40)
    assert last == [("subspace", 40), *after]
    card = load(trained).card
    assert all(f"## Adaptation: {kind}, {size:,} fast weights\n" in card for kind, size in last)


def test_additions_go_by_the_statistics_that_are_stored(calibrate, trained):
    """Few axes were measured: the usual are as many, and more are refused by what there is."""
    words = ["--kind", "subspace"]
    _, before = calibrate(*words, "--rank", 2, "--embedding-rank", 2, "--fast-weights", 50)
    cores = cores_of(load(trained).parameters.config, Statistics(rank=2, embedding_rank=2))
    served, most = most_fast_weights(cores, cells=False), most_fast_weights(cores)
    _, after = calibrate("--add", *words)
    assert after == [*before, ("subspace", served)]
    stored = (trained / ADAPTATION).read_bytes()
    done, _ = calibrate("--add", "--kind", "subspace", "--fast-weights", most + 1)
    assert done.exit_code == 2
    assert f"a subspace of {most:,} fast weights at most, not {most + 1:,}" in done.stderr
    for option in ("--rank", "--embedding-rank"):
        done, _ = calibrate("--add", *words, option, 2)
        assert done.exit_code == 2
        assert f"{option}: --add goes by the statistics" in done.stderr
    assert (trained / ADAPTATION).read_bytes() == stored
    _, last = calibrate("--add", "--kind", "subspace", "--fast-weights", most)
    assert last == [*after, ("subspace", most)]


def test_additions_have_the_segments_of_what_is_stored(calibrate, trained):
    """Statistics belong to a segment length; another one is refused, and none need be given."""
    calibrate("--kind", "output_bias")
    done, _ = calibrate("--add", "--kind", "full", "--segment", 10)
    assert done.exit_code == 2
    assert "segments of 20 tokens" in done.stderr


def test_without_stored_axes_no_subspace_can_be_added(rlstm, calibrate, trained, own_folder):
    """What ``rlstm evaluate --keep`` leaves has none; other kinds can."""
    words = ["--search-tokens", 60, "--heads", 1, "--segments", 2, "--trained-on", own_folder]
    assert rlstm("evaluate", trained, "--corpus", "one", "--search", *words, *GRID, "--keep").exit_code == 0
    done, _ = calibrate("--add", "--kind", "subspace")
    assert done.exit_code == 2
    assert "have no axes" in done.stderr
    assert "without --add" in done.stderr
    _, rules = calibrate("--add", "--kind", "output_bias")
    assert rules[-1] == ("output_bias", 256)

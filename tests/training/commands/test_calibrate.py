"""What ``rlstm calibrate`` is asked for, before anything is measured."""

import pytest
import torch

from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.checkpoint import ADAPTATION, load
from rlstm_training.commands.calibrate import SHARES
from rlstm_training.evaluation.measurements import Statistics, most_coordinates

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
        choices = load_calibration(checkpoint.adaptation_file, checkpoint.model).choices
        return done, [(choice.kind, choice.coordinates) for choice in choices]

    return call


def test_the_usual_sizes_are_shares_of_the_bytes_of_full_weights(calibrate, trained):
    """After the served one, the embedding and the softmax within 128 axes, and all biases: two bytes a
    coordinate, four a weight; as many as there are where the axes make fewer.
    """
    model = load(trained).model
    weights = model.config.num_parameters
    _, sizes = calibrate("--kind", "subspace")
    served = most_coordinates(model, Statistics(rank=160), 128, cells=False)
    usual = [16 * (weights // (8 * share)) for share in SHARES]
    assert sizes == [("subspace", size) for size in (served, *usual)]
    most = most_coordinates(model, Statistics(rank=1, embedding_rank=1))
    _, sizes = calibrate("--kind", "subspace", "--rank", 1, "--embedding-rank", 1)
    assert 2 * weights // SHARES[-1] > most
    assert sizes[-1] == ("subspace", most)


def test_all_usual_kinds_are_calibrated(calibrate, trained):
    """A subspace first: it is the default."""
    done, rules = calibrate("--coordinates", 100, "--units", 4)
    shape = load(trained).model.config
    weights, layers = shape.num_parameters, shape.num_layers
    assert rules == [("subspace", 100), ("full", weights), ("sparse", layers * 16), ("output_bias", 256)]
    assert all(f"{kind}" in done.output for kind, _ in rules)


def test_what_is_asked_for_twice_is_calibrated_once(calibrate):
    """A search is long, and two rules of one size could not be stored."""
    words = ["--kind", "output_bias", "--kind", "subspace", "--kind", "output_bias"]
    _, rules = calibrate(*words, "--coordinates", 50, "--coordinates", 50)
    assert rules == [("output_bias", 256), ("subspace", 50)]


@pytest.mark.parametrize(
    ("words", "option", "says"),
    [
        (["--kind", "dense"], "--kind", "'dense'"),
        (["--coordinates", 10**8], "--coordinates", "coordinates at most"),
        (["--rank", 1, "--coordinates", 10**5], "--coordinates", "a subspace of"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(calibrate, trained, words, option, says):
    """The option is named, and no file is written."""
    done, _ = calibrate(*words)
    assert done.exit_code == 2
    told = " ".join(done.stderr.replace("│", " ").split())
    assert option in told
    assert says in told
    assert load(trained).adaptation_file is None


def test_a_rule_is_added_to_those_there_are(calibrate, trained):
    """--add keeps statistics, rules and default; what has the kind and size of one takes its place."""
    _, before = calibrate("--kind", "output_bias", "--kind", "subspace", "--coordinates", 50)
    stored = load_calibration(trained / ADAPTATION, load(trained).model)
    _, after = calibrate("--add", "--kind", "sparse", "--units", 3, "--kind", "subspace", "--coordinates", 50)
    assert after == [*before, ("sparse", load(trained).model.config.num_layers * 9)]
    found = load_calibration(trained / ADAPTATION, load(trained).model)
    assert torch.equal(found.statistics.full_P, stored.statistics.full_P)
    _, last = calibrate("--add", "--first", "--kind", "subspace", "--coordinates", 40)
    assert last == [("subspace", 40), *after]
    card = load(trained).card
    assert all(f"## Adaptation: {kind}, {size:,} fast weights\n" in card for kind, size in last)

"""The file that holds a checkpoint's statistics and rules: what is read is what was written."""

import hashlib
from dataclasses import replace

import pytest
import torch

from rlstm_model.adaptation.calibration import load_calibration, rounded, save_calibration

SHAPES = [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rounds": 0}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adaptation.safetensors"


def tensors_of(measured):
    """Everything that statistics hold, by name."""
    named = {"full": measured.full_P}
    if measured.subspace is not None:
        named |= {f"rms {name}": rms for name, rms in measured.subspace.rms.items()}
        for name, basis in measured.subspace.bases.items():
            named |= {f"left {name}": basis.left, f"right {name}": basis.right}
    if measured.sparse is not None:
        named |= {"units": measured.sparse.units_LU, "rms units": measured.sparse.rms_LUU}
    return named


def assert_same(found, expected):
    """Two statistics hold the same, to the last bit."""
    found, expected = tensors_of(found), tensors_of(expected)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("rank", [2, None])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_are_read_as_they_were_rounded(make_calibrated, path, shape, rank):
    """What a search was made with is what is read again, to the last bit: axes, cores, biases and all."""
    first = make_calibrated(rank=rank, **shape)
    save_calibration(path, first)
    assert_same(load_calibration(path, first.model).statistics, rounded(first.statistics, first.model))


def test_what_was_read_is_written_again(make_calibrated, path):
    """Once rounded, nothing is lost by any number of copies: the file is the same to the last byte."""
    first = make_calibrated()
    save_calibration(path, first)
    before = path.read_bytes()
    save_calibration(path, load_calibration(path, first.model))
    assert path.read_bytes() == before


def test_rounding_keeps_enough(make_calibrated):
    """Axes to three digits, RMS between them and of biases to two; of whole weights to one."""
    first = make_calibrated()
    precise, coarse = (
        tensors_of(each) for each in (first.statistics, rounded(first.statistics, first.model))
    )
    for name, tensor in precise.items():
        relative = {"full": 2**-3, "rms": 2**-8}.get(name.partition(" ")[0], 2**-10)
        torch.testing.assert_close(coarse[name], tensor, rtol=relative, atol=1e-6)
        assert torch.equal(coarse[name], tensor) == (name == "units")


def test_rules_are_read_in_their_order(make_calibrated, path):
    """Every field of each, the default first."""
    first = make_calibrated()
    save_calibration(path, first)
    assert load_calibration(path, first.model).choices == first.choices


def test_a_rule_chooses_the_same_before_and_after(make_calibrated, path):
    """A subspace that is read learns the same weights at the same scales as one that was searched with."""
    first = make_calibrated()
    save_calibration(path, first)
    read = load_calibration(path, first.model)
    for rule in first.choices:
        before = rounded(first.statistics, first.model).calibration(first.model, rule)
        assert read.choose(rule.kind, rule.num_fast_weights).fingerprint == before.fingerprint


def test_the_fingerprint_is_that_of_the_file(tiny_model, good_file):
    """Any byte of it counts."""
    expected = hashlib.sha256(good_file.read_bytes()).hexdigest()
    assert load_calibration(good_file, tiny_model()).fingerprint == expected


def test_nothing_is_left_beside_the_file(good_file):
    """It is written beside itself and then renamed."""
    assert [entry.name for entry in good_file.parent.iterdir()] == [good_file.name]


def test_a_file_takes_the_precision_of_the_model(tiny_model, good_file):
    """A float64 model gets float64 statistics."""
    found = load_calibration(good_file, tiny_model(dtype=torch.float64)).statistics
    dtypes = {tensor.dtype for name, tensor in tensors_of(found).items() if name != "units"}
    assert dtypes == {torch.float64}


def test_statistics_too_small_for_eight_bits_are_kept_in_sixteen(make_calibrated, path):
    """Of a word model's rare rows most RMS lie below the least that eight bits hold: none becomes 0."""
    first = make_calibrated()
    small = replace(first.statistics, full_P=first.statistics.full_P * 1e-6)
    save_calibration(path, replace(first, statistics=small))
    found = load_calibration(path, first.model).statistics.full_P
    torch.testing.assert_close(found, small.full_P, rtol=2.0**-8, atol=0.0)

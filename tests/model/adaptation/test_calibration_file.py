"""The file that holds a checkpoint's statistics and rules: what is read is what was written."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model.adaptation.calibration_file import load_calibration, rounded, save_calibration

SHAPES = [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rounds": 0}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adaptation.safetensors"


def arrays_of(measured):
    """Everything that statistics hold, by name."""
    named = {f"rms {name}": part for name, part in measured.rms.items()}
    named |= {f"core {name}": part for name, part in measured.cores.items()}
    for name, axes in measured.axes.items():
        named |= {f"left {name}": axes.left, f"right {name}": axes.right}
    return named


@pytest.mark.parametrize("rank", [2, 0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_search_was_made_with_is_what_is_read(make_calibrated, path, shape, rank):
    """To the last bit: axes, cores, biases and all; so a rule chooses the same weights before and after."""
    first = make_calibrated(rank=rank, **shape)
    save_calibration(path, first)
    read = load_calibration(path, drawn.config_of(**shape))
    found, expected = arrays_of(read.statistics), arrays_of(rounded(first.statistics))
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        assert found[name].tobytes() == array.tobytes(), name
    assert read.choices == first.choices
    assert read.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    for rule in first.choices:
        before = rounded(first.statistics).calibration(rule)
        assert read.choose(rule.kind, rule.num_fast_weights).fingerprint == before.fingerprint


def test_what_full_fast_weights_alone_need_is_left_out(make_calibrated, path):
    """Where no rule is of their kind: the same subspace, a smaller file, and a word to who wants more."""
    whole = make_calibrated()
    save_calibration(path, whole)
    size, parts = path.stat().st_size, tuple(one for one in whole.choices if one.kind != "full")
    save_calibration(path, replace(whole, choices=parts))
    read = load_calibration(path, drawn.config_of())
    assert path.stat().st_size < size
    for rule in parts:
        found = read.choose(rule.kind, rule.num_fast_weights)
        assert found.fingerprint == rounded(whole.statistics).calibration(rule).fingerprint
    with pytest.raises(ValueError, match="was not kept"):
        read.statistics.calibration(next(one for one in whole.choices if one.kind == "full"))
    save_calibration(path, read)
    assert load_calibration(path, drawn.config_of()).choices == parts


def test_a_disk_that_takes_no_more_leaves_the_old_file(make_calibrated, path, monkeypatch):
    """Nor half of the new one beside it."""
    path.write_bytes(b"old")

    def full(partial, data):
        with partial.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save_calibration(path, make_calibrated())
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [(path.name, b"old")]


def test_rounding_keeps_enough(make_calibrated):
    """Axes to three digits, RMS between them and of biases to two; of whole weights to one."""
    first = make_calibrated()
    precise, coarse = arrays_of(first.statistics), arrays_of(rounded(first.statistics))
    for name, array in precise.items():
        kind = name.partition(" ")[0]
        relative = 2**-8 if name.endswith("bias") else {"rms": 2**-3, "core": 2**-8}.get(kind, 2**-10)
        np.testing.assert_allclose(coarse[name], array, rtol=relative, atol=1e-6)


def test_statistics_too_small_for_eight_bits_are_kept_in_sixteen(make_calibrated, path):
    """Of a word model's rare rows most RMS lie below the least that eight bits hold: none becomes 0."""
    first = make_calibrated()
    rms = {name: part * np.float32(1e-6) for name, part in first.statistics.rms.items()}
    save_calibration(path, replace(first, statistics=replace(first.statistics, rms=rms)))
    found = load_calibration(path, drawn.config_of()).statistics.rms
    for name, part in rms.items():
        np.testing.assert_allclose(found[name], part, rtol=2.0**-8, atol=0.0)

"""Files that no calibration can be read from: the error names the file, and what is wrong in it."""

import json

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model import stored
from rlstm_model.adaptation.calibration_file import CalibrationError, load_calibration

HALF, BF16, E5M2 = "F16", "BF16", "F8_E5M2"
CONFIG = drawn.config_of()


def rules_in(path):
    """The metadata of a file, decoded."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return json.loads(header["__metadata__"]["adaptation"])


def rewritten(path, *, metadata=None, **changes):
    """The file with some tensors replaced, by arrays and their number formats (None: left out).

    ``metadata`` if they are to be other.
    """
    held = stored.read_file(path)
    arrays, dtypes = dict(held.arrays), dict(held.dtypes)
    for name, change in changes.items():
        arrays.pop(name, None)
        if change is not None:
            arrays[name], dtypes[name] = change
    metadata = {"adaptation": json.dumps(rules_in(path))} if metadata is None else metadata
    path.write_bytes(stored.write(arrays, dtypes, metadata))


def faults(shape, dtype):
    """What may be wrong with a tensor, and what the error says of it."""
    *rest, last = shape

    def full(value):
        return np.full(shape, value, np.float32), dtype

    return {
        "missing": (None, "missing"),
        "size": ((np.ones((*rest, last + 1)), dtype), "shape"),
        "dimensions": ((np.ones((*shape, 1)), dtype), "shape"),
        "precision": ((np.ones(shape), "F32"), "F32"),
        "integers": ((np.ones(shape), "I64"), "I64"),
        "nan": (full(np.nan), "not finite"),
        "infinity": (full(np.inf), "not finite"),
        "negative": (full(-1.0), "negative"),
    }


TENSORS = {
    "rms.embedding.bias": ((19,), BF16),
    "rms.stack.layers.0.mogrifier_up": ((4, 10, 4), E5M2),
    "core.stack.layers.1.h": ((2, 2), BF16),
    "left.stack.layers.1.h": ((30, 2), HALF),
    "right.stack.layers.0.mogrifier_down": ((4, 2, 10), HALF),
}
# A core of another size is named by the axes that do not fit it; axes may be negative.
FAULTS = [
    (name, fault)
    for name, spec in TENSORS.items()
    for fault in faults(*spec)
    if (fault != "negative" or spec[1] is not HALF) and (fault != "size" or not name.startswith("core"))
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_bad_tensor_is_named(good_file, name, fault):
    """Whatever is wrong with a tensor, the error names file, tensor and fault."""
    tensor, says = faults(*TENSORS[name])[fault]
    rewritten(good_file, **{name: tensor})
    with pytest.raises(CalibrationError, match=rf"{good_file}: tensor {name} .*{says}"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (0, 2), (2, 0), (4,), (1, 2, 2)], ids=str)
def test_a_core_must_fit_its_axes(good_file, shape):
    """A core of another size, of none, or of another shape: it or its axes are named."""
    rewritten(good_file, **{"core.stack.layers.1.h": (np.ones(shape), BF16)})
    with pytest.raises(
        CalibrationError, match=rf"{good_file}: tensor (core|left|right)\.stack\.layers\.1\.h has"
    ):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("name", ["rms.stack.layers.7.x", "core.stack.layers.7.x", "left.nonsense", "x"])
def test_a_tensor_too_many_is_named(good_file, name):
    """One of another model, or of nothing."""
    rewritten(good_file, **{name: (np.ones(1), BF16)})
    with pytest.raises(CalibrationError, match=rf"{good_file}: tensor {name} belongs to another model"):
        load_calibration(good_file, CONFIG)


def test_a_bias_has_no_axes(good_file):
    """Axes of a vector are refused."""
    rewritten(good_file, **{"core.embedding.bias": (np.ones((2, 2)), BF16)})
    with pytest.raises(CalibrationError, match=rf"{good_file}: .*embedding\.bias are of no matrix"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("part", ["rms", "core"])
def test_statistics_that_are_all_zero(good_file, part):
    """Statistics without any gradient cannot carry the rule that divides by them; its kind is named."""
    kind, held = {"rms": "output_bias", "core": "subspace"}[part], stored.read_file(good_file)
    zeros = {
        name: (np.zeros_like(array), held.dtypes[name])
        for name, array in held.arrays.items()
        if name.startswith(part) or (name.startswith("rms") and name.endswith("bias"))
    }
    rewritten(good_file, **zeros)
    with pytest.raises(CalibrationError, match=f"{good_file}: the statistics of {kind} of .* all zero"):
        load_calibration(good_file, CONFIG)


def rules(**changes):
    """Changes the metadata of a file in its members."""
    return lambda held: {"adaptation": json.dumps(held | changes)}


def rule(place, **changes):
    """Changes one of the rules."""

    def changed(held):
        held["rules"][place] |= changes
        return {"adaptation": json.dumps(held)}

    return changed


OLD = "is not of format 3: calibrate the model again"
BAD_METADATA = {
    "none": (lambda _: {}, ""),
    "other": (lambda _: {"other": "{}"}, ""),
    "broken": (lambda _: {"adaptation": "{"}, ""),
    "list": (lambda _: {"adaptation": "[]"}, ""),
    "deep": (lambda _: {"adaptation": "[" * 100_000}, ""),
    "an old format": (rules(format_version=2), OLD),
    "a format in words": (rules(format_version="3"), OLD),
    "no format": (rules(format_version=None), OLD),
    "a member too many": (rules(more=1), ".*nothing else"),
    "no rule": (rules(rules=[]), ".*at least one rule"),
    "rules that are no list": (rules(rules={}), ".*list of rules"),
    "rules that are none": (rules(rules=[None]), ".*must be an object"),
    "a wrong rate": (rule(0, rate=-1), "rate"),
    "a wrong decay": (rule(-1, decay=1e999), "decay"),
    "a wrong kind": (rule(-1, kind="none"), "kind"),
    "fewer weights than full": (rules(rules=[drawn.rule_of(10, kind="full").to_json()]), ".*10"),
    "more than the vocabulary": (rules(rules=[drawn.rule_of(20, kind="output_bias").to_json()]), ".*20"),
    "more than was measured": (rules(rules=[drawn.rule_of(100_000).to_json()]), ".*100000"),
}


@pytest.mark.parametrize("fault", BAD_METADATA)
def test_bad_metadata(good_file, fault):
    """Metadata without rules, of another format, or with a rule that cannot be; the file is named."""
    changed, says = BAD_METADATA[fault]
    rewritten(good_file, metadata=changed(rules_in(good_file)))
    with pytest.raises(CalibrationError, match=f"^{good_file}: {says}"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("content", [b"", b"just some text", b"\xff" * 64, b"\x00" * 64, 7, 8, 200, -1])
def test_another_kind_of_file(good_file, content):
    """Any other bytes, and a file that is cut short after so many, are refused, and the file is named."""
    good_file.write_bytes(good_file.read_bytes()[:content] if isinstance(content, int) else content)
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, CONFIG)


def test_no_file(tmp_path):
    """A file that is missing, or a folder in its place, is named."""
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(CalibrationError, match=str(path)):
            load_calibration(path, CONFIG)

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


BAD_METADATA = {
    "none": {},
    "other": {"other": "{}"},
    "broken": {"adaptation": "{"},
    "list": {"adaptation": "[]"},
    "null": {"adaptation": "null"},
    "empty": {"adaptation": "{}"},
    "deep": {"adaptation": "[" * 100_000},
}


@pytest.mark.parametrize("fault", BAD_METADATA)
def test_bad_metadata(good_file, fault):
    """A file without rules is refused, and named."""
    rewritten(good_file, metadata=BAD_METADATA[fault])
    with pytest.raises(CalibrationError, match=f"^{good_file}: "):
        load_calibration(good_file, CONFIG)


def with_rules(path, **changes):
    """The file with other metadata beside its tensors."""
    rewritten(path, metadata={"adaptation": json.dumps({**rules_in(path), **changes})})


@pytest.mark.parametrize("version", [1, 2, "3", None])
def test_another_format_is_refused(good_file, version):
    """An old file, or a newer one, cannot be read as this one: the user is told what to do."""
    with_rules(good_file, format_version=version)
    with pytest.raises(CalibrationError, match=f"{good_file}: is not of format 3: calibrate the model again"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("rules", [None, {}, "full", [None], [[]]], ids=str)
def test_rules_must_be_a_list_of_rules(good_file, rules):
    """Anything else is refused."""
    with_rules(good_file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{good_file}: .*(list of rules|must be an object)"):
        load_calibration(good_file, CONFIG)


def test_there_must_be_rules_and_nothing_beside_them(good_file):
    """No rule at all, or a field that is not known."""
    for changes, says in (({"rules": []}, "at least one rule"), ({"more": 1}, "nothing else")):
        with_rules(good_file, **changes)
        with pytest.raises(CalibrationError, match=f"{good_file}: .*{says}"):
            load_calibration(good_file, CONFIG)
        with_rules(good_file, rules=[])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", -1),
        ("segment", True),
        ("rule", "adam"),
        ("decay", 1e999),
        ("kind", "none"),
        ("num_fast_weights", 0),
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_a_bad_rule_names_file_and_field(good_file, field, value, place):
    """A wrong value in any rule."""
    rules = rules_in(good_file)["rules"]
    rules[place][field] = value
    with_rules(good_file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{good_file}: {field}"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize(
    ("kind", "num_fast_weights"), [("full", 10), ("output_bias", 20), ("subspace", 100_000)]
)
def test_a_rule_of_what_is_not_there(good_file, kind, num_fast_weights):
    """Of another size than the statistics have, or of a kind that was not measured."""
    with_rules(good_file, rules=[drawn.rule_of(num_fast_weights, kind=kind).to_json()])
    with pytest.raises(CalibrationError, match=f"{good_file}: .*({num_fast_weights}|{kind})"):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize("keep", [0, 7, 8, 200, -1])
def test_a_truncated_file(good_file, keep):
    """A file cut anywhere is refused, and named."""
    good_file.write_bytes(good_file.read_bytes()[:keep])
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, CONFIG)


@pytest.mark.parametrize(
    "content", [b"no safetensors file at all, just some text", b"\xff" * 64, b"\x00" * 64]
)
def test_another_kind_of_file(good_file, content):
    """Any other bytes are refused, and the file is named."""
    good_file.write_bytes(content)
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, CONFIG)


def test_no_file(tmp_path):
    """A file that is missing, or a folder in its place, is named."""
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(CalibrationError, match=str(path)):
            load_calibration(path, CONFIG)

"""Files that no calibration can be read from: the error names the file, and what is wrong in it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlstm_model.adaptation.calibration import CalibrationError, load_calibration

HALF, BF16, E5M2 = torch.float16, torch.bfloat16, torch.float8_e5m2
NAN = float("nan")


def rules_in(path):
    """The metadata of a file, decoded."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return json.loads(header["__metadata__"]["adaptation"])


def rewritten(path, *, metadata=None, **tensors):
    """The file with some tensors replaced (None: left out), and metadata if they are to be other."""
    kept = {**load_file(path), **tensors}
    kept = {name: tensor for name, tensor in kept.items() if tensor is not None}
    save_file(
        kept, path, metadata={"adaptation": json.dumps(rules_in(path))} if metadata is None else metadata
    )


def faults(shape, dtype):
    """What may be wrong with a tensor, and what the error says of it."""
    *rest, last = shape
    return {
        "missing": (None, "missing"),
        "size": (torch.ones(*rest, last + 1, dtype=dtype), "shape"),
        "dimensions": (torch.ones(*shape, 1, dtype=dtype), "shape"),
        "precision": (torch.ones(shape), "F32"),
        "integers": (torch.ones(shape, dtype=torch.int64), "I64"),
        "nan": (torch.full(shape, NAN, dtype=dtype), "not finite"),
        "infinity": (torch.full(shape, float("inf"), dtype=dtype), "not finite"),
        "negative": (torch.full(shape, -1.0, dtype=dtype), "negative"),
    }


TENSORS = {
    "rms.embedding.bias": ((11,), BF16),
    "rms.stack.layers.0.mogrifier_up": ((3, 5, 2), E5M2),
    "core.stack.layers.1.h": ((2, 2), BF16),
    "left.stack.layers.1.h": ((15, 2), HALF),
    "right.stack.layers.0.mogrifier_down": ((3, 2, 5), HALF),
    "sparse.rms": ((2, 5, 5), BF16),
}
# A core of another size is named by the axes that do not fit it; axes may be negative.
FAULTS = [
    (name, fault)
    for name, spec in TENSORS.items()
    for fault in faults(*spec)
    if (fault != "negative" or spec[1] is not HALF) and (fault != "size" or not name.startswith("core"))
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_bad_tensor_is_named(tiny_model, good_file, name, fault):
    """Whatever is wrong with a tensor, the error names file, tensor and fault."""
    tensor, says = faults(*TENSORS[name])[fault]
    rewritten(good_file, **{name: tensor})
    with pytest.raises(CalibrationError, match=rf"{good_file}: tensor {name} .*{says}"):
        load_calibration(good_file, tiny_model())


def test_every_tensor_must_be_there(tiny_model, good_file):
    """Leaving out any one of them is noticed, and it is the one that is named."""
    whole = good_file.read_bytes()
    for name in load_file(good_file):
        good_file.write_bytes(whole)
        rewritten(good_file, **{name: None})
        with pytest.raises(CalibrationError, match=f"tensor {name} is missing"):
            load_calibration(good_file, tiny_model())


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (0, 2), (2, 0), (4,), (1, 2, 2)], ids=str)
def test_a_core_must_fit_its_axes(tiny_model, good_file, shape):
    """A core of another size, of none, or of another shape: it or its axes are named."""
    rewritten(good_file, **{"core.stack.layers.1.h": torch.ones(shape, dtype=BF16)})
    with pytest.raises(
        CalibrationError, match=rf"{good_file}: tensor (core|left|right)\.stack\.layers\.1\.h has"
    ):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize("name", ["rms.stack.layers.7.x", "core.stack.layers.7.x", "left.nonsense", "x"])
def test_a_tensor_too_many_is_named(tiny_model, good_file, name):
    """One of another model, or of nothing."""
    rewritten(good_file, **{name: torch.ones(1, dtype=BF16)})
    with pytest.raises(CalibrationError, match=rf"{good_file}: tensor {name} belongs to another model"):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize(
    "units",
    [
        torch.tensor([[0, 1], [2, 2]]),
        torch.tensor([[0, 1], [2, 5]]),
        torch.tensor([[0, -1], [2, 3]]),
        torch.tensor([[0, 1]]),
        torch.tensor([0, 1]),
    ],
    ids=["twice", "beyond", "negative", "layers", "vector"],
)
def test_units_must_be_those_of_the_model(tiny_model, good_file, units):
    """Units that no layer has are refused."""
    rewritten(good_file, **{"sparse.units": units.int()})
    with pytest.raises(CalibrationError, match=rf"{good_file}: tensor sparse\.units"):
        load_calibration(good_file, tiny_model())


def test_a_bias_has_no_axes(tiny_model, good_file):
    """Axes of a vector are refused."""
    rewritten(good_file, **{"core.embedding.bias": torch.ones(2, 2, dtype=BF16)})
    with pytest.raises(CalibrationError, match=rf"{good_file}: .*embedding\.bias are of no matrix"):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize("part", ["rms", "core"])
def test_statistics_that_are_all_zero(tiny_model, good_file, part):
    """Statistics without any gradient cannot carry the rule that divides by them; its kind is named."""
    kind = {"rms": "output_bias", "core": "subspace"}[part]
    zeros = {
        name: torch.zeros_like(tensor)
        for name, tensor in load_file(good_file).items()
        if name.startswith(part) or (name.startswith("rms") and name.endswith("bias"))
    }
    rewritten(good_file, **zeros)
    with pytest.raises(CalibrationError, match=f"{good_file}: the statistics of {kind} of .* all zero"):
        load_calibration(good_file, tiny_model())


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
def test_bad_metadata(tiny_model, good_file, fault):
    """A file without rules is refused, and named."""
    rewritten(good_file, metadata=BAD_METADATA[fault])
    with pytest.raises(CalibrationError, match=f"^{good_file}: "):
        load_calibration(good_file, tiny_model())


def with_rules(path, **changes):
    """The file with other metadata beside its tensors."""
    rewritten(path, metadata={"adaptation": json.dumps({**rules_in(path), **changes})})


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_format_is_refused(tiny_model, good_file, version):
    """An old file, or a newer one, cannot be read as this one: the user is told what to do."""
    with_rules(good_file, format_version=version)
    with pytest.raises(CalibrationError, match=f"{good_file}: is not of format 2: calibrate the model again"):
        load_calibration(good_file, tiny_model())


def test_the_file_of_an_earlier_version_is_refused(tiny_model, good_file):
    """It had one rule, and tensors by the names of the weights."""
    model = tiny_model()
    tensors = {name: torch.ones_like(weight).bfloat16() for name, weight in model.named_parameters()}
    old = {"format_version": 1, "kind": "full", "rule": "rms", "rate": 1e-3, "segment": 20}
    save_file(tensors, good_file, metadata={"adaptation": json.dumps(old)})
    with pytest.raises(CalibrationError, match="calibrate the model again"):
        load_calibration(good_file, model)


@pytest.mark.parametrize("rules", [None, {}, "full", [None], [[]]], ids=str)
def test_rules_must_be_a_list_of_rules(tiny_model, good_file, rules):
    """Anything else is refused."""
    with_rules(good_file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{good_file}: .*(list of rules|must be an object)"):
        load_calibration(good_file, tiny_model())


def test_there_must_be_rules_and_nothing_beside_them(tiny_model, good_file):
    """No rule at all, or a field that is not known."""
    for changes, says in (({"rules": []}, "at least one rule"), ({"more": 1}, "nothing else")):
        with_rules(good_file, **changes)
        with pytest.raises(CalibrationError, match=f"{good_file}: .*{says}"):
            load_calibration(good_file, tiny_model())
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
def test_a_bad_rule_names_file_and_field(tiny_model, good_file, field, value, place):
    """A wrong value in any rule."""
    rules = rules_in(good_file)["rules"]
    rules[place][field] = value
    with_rules(good_file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{good_file}: {field}"):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize(
    ("kind", "num_fast_weights"), [("full", 10), ("output_bias", 12), ("subspace", 100_000), ("sparse", 9)]
)
def test_a_rule_of_what_is_not_there(tiny_model, config, good_file, kind, num_fast_weights):
    """Of another size than the statistics have, or of a kind that was not measured."""
    with_rules(good_file, rules=[config(kind=kind, num_fast_weights=num_fast_weights).to_json()])
    with pytest.raises(CalibrationError, match=f"{good_file}: .*({num_fast_weights}|{kind})"):
        load_calibration(good_file, tiny_model())


def test_two_rules_of_one_size(tiny_model, good_file):
    """Nobody could choose between them."""
    rules = rules_in(good_file)["rules"]
    with_rules(good_file, rules=[*rules, rules[0]])
    with pytest.raises(CalibrationError, match=f"{good_file}: two rules"):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize("keep", [0, 7, 8, 200, -1])
def test_a_truncated_file(tiny_model, good_file, keep):
    """A file cut anywhere is refused, and named."""
    good_file.write_bytes(good_file.read_bytes()[:keep])
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, tiny_model())


@pytest.mark.parametrize(
    "content", [b"no safetensors file at all, just some text", b"\xff" * 64, b"\x00" * 64]
)
def test_another_kind_of_file(tiny_model, good_file, content):
    """Any other bytes are refused, and the file is named."""
    good_file.write_bytes(content)
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, tiny_model())


def test_no_file(tiny_model, tmp_path):
    """A file that is missing, or a folder in its place, is named."""
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(CalibrationError, match=str(path)):
            load_calibration(path, tiny_model())


def test_a_calibration_of_another_model(tiny_model, good_file):
    """A model of another shape does not take it."""
    with pytest.raises(CalibrationError, match=str(good_file)):
        load_calibration(good_file, tiny_model(hidden_size=6))

"""The file that holds a checkpoint's statistics and rules: what is read is what was written, or an error."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlstm_model.adaptation.calibration import Calibrated
from rlstm_model.adaptation.calibration_file import (
    CalibrationError,
    load_calibration,
    rounded,
    save_calibration,
)

HALF = torch.float16
SHAPES = [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rounds": 0}]


def rules_of(config, measured):
    """A rule for each kind that statistics have, with nothing at its usual value."""
    sizes = {"subspace": 40, "output_bias": 11, "full": len(measured.full_P)}
    if measured.subspace is None:
        del sizes["subspace"]
    unusual = {"decay": 0.1, "epsilon": 0.3, "max_norm_ratio": 0.4, "reduction": "sum"}
    return tuple(config(kind=kind, coordinates=size, **unusual) for kind, size in sizes.items())


@pytest.fixture
def calibrated(tiny_model, statistics, config):
    """Makes rules of all kinds with their statistics."""

    def make(*, rank=2, **shape):
        model = tiny_model(**shape)
        measured = statistics(model, rank=rank)
        return Calibrated(model=model, statistics=measured, choices=rules_of(config, measured))

    return make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adaptation.safetensors"


@pytest.fixture
def file(calibrated, path):
    """A good file with everything in it."""
    save_calibration(path, calibrated())
    return path


def tensors_of(measured):
    """Everything that statistics hold, by name."""
    named = {"full": measured.full_P}
    if measured.subspace is not None:
        named |= {f"rms {name}": rms for name, rms in measured.subspace.rms.items()}
        for name, basis in measured.subspace.bases.items():
            named |= {f"left {name}": basis.left, f"right {name}": basis.right}
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
def test_statistics_are_read_as_they_were_rounded(calibrated, path, shape, rank):
    """What a search was made with is what is read again, to the last bit: axes, cores, biases and all."""
    first = calibrated(rank=rank, **shape)
    save_calibration(path, first)
    assert_same(load_calibration(path, first.model).statistics, rounded(first.statistics, first.model))


def test_what_was_read_is_written_again(calibrated, path):
    """Once rounded, nothing is lost by any number of copies: the file is the same to the last byte."""
    first = calibrated()
    save_calibration(path, first)
    before = path.read_bytes()
    save_calibration(path, load_calibration(path, first.model))
    assert path.read_bytes() == before


def test_rounding_keeps_enough(calibrated):
    """Axes to three digits, RMS between them and of biases to two; of whole weights to one."""
    first = calibrated()
    precise, coarse = (
        tensors_of(each) for each in (first.statistics, rounded(first.statistics, first.model))
    )
    for name, tensor in precise.items():
        relative = {"full": 2**-3, "rms": 2**-8}.get(name.partition(" ")[0], 2**-10)
        torch.testing.assert_close(coarse[name], tensor, rtol=relative, atol=1e-6)
        assert not torch.equal(coarse[name], tensor)


def test_rules_are_read_in_their_order(calibrated, path):
    """Every field of each, the default first."""
    first = calibrated()
    save_calibration(path, first)
    assert load_calibration(path, first.model).choices == first.choices


def test_a_rule_chooses_the_same_before_and_after(calibrated, path):
    """A subspace that is read learns the same weights at the same scales as one that was searched with."""
    first = calibrated()
    save_calibration(path, first)
    (rule, *_) = first.choices
    before = rounded(first.statistics, first.model).calibration(first.model, rule)
    assert load_calibration(path, first.model).choose("subspace").fingerprint == before.fingerprint


def test_the_fingerprint_is_that_of_the_file(tiny_model, file):
    """Any byte of it counts."""
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert load_calibration(file, tiny_model()).fingerprint == expected


def test_nothing_is_left_beside_the_file(file):
    """It is written beside itself and then renamed."""
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_file_takes_the_precision_of_the_model(tiny_model, file):
    """A float64 model gets float64 statistics."""
    found = load_calibration(file, tiny_model(dtype=torch.float64)).statistics
    assert {tensor.dtype for tensor in tensors_of(found).values()} == {torch.float64}


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


BF16, E5M2 = torch.bfloat16, torch.float8_e5m2
NAN = float("nan")


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
}
# A core of another size is named by the axes that do not fit it; axes may be negative.
FAULTS = [
    (name, fault)
    for name, spec in TENSORS.items()
    for fault in faults(*spec)
    if (fault != "negative" or spec[1] is not HALF) and (fault != "size" or not name.startswith("core"))
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_bad_tensor_is_named(tiny_model, file, name, fault):
    """Whatever is wrong with a tensor, the error names file, tensor and fault."""
    tensor, says = faults(*TENSORS[name])[fault]
    rewritten(file, **{name: tensor})
    with pytest.raises(CalibrationError, match=rf"{file}: tensor {name} .*{says}"):
        load_calibration(file, tiny_model())


def test_every_tensor_must_be_there(tiny_model, file):
    """Leaving out any one of them is noticed, and it is the one that is named."""
    whole = file.read_bytes()
    for name in load_file(file):
        file.write_bytes(whole)
        rewritten(file, **{name: None})
        with pytest.raises(CalibrationError, match=f"tensor {name} is missing"):
            load_calibration(file, tiny_model())


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (0, 2), (2, 0), (4,), (1, 2, 2)], ids=str)
def test_a_core_must_fit_its_axes(tiny_model, file, shape):
    """A core of another size, of none, or of another shape: it or its axes are named."""
    rewritten(file, **{"core.stack.layers.1.h": torch.ones(shape, dtype=BF16)})
    with pytest.raises(CalibrationError, match=rf"{file}: tensor (core|left|right)\.stack\.layers\.1\.h has"):
        load_calibration(file, tiny_model())


@pytest.mark.parametrize("name", ["rms.stack.layers.7.x", "core.stack.layers.7.x", "left.nonsense", "x"])
def test_a_tensor_too_many_is_named(tiny_model, file, name):
    """One of another model, or of nothing."""
    rewritten(file, **{name: torch.ones(1, dtype=BF16)})
    with pytest.raises(CalibrationError, match=rf"{file}: tensor {name} belongs to another model"):
        load_calibration(file, tiny_model())


def test_a_bias_has_no_axes(tiny_model, file):
    """Axes of a vector are refused."""
    rewritten(file, **{"core.embedding.bias": torch.ones(2, 2, dtype=BF16)})
    with pytest.raises(CalibrationError, match=rf"{file}: .*embedding\.bias are of no matrix"):
        load_calibration(file, tiny_model())


@pytest.mark.parametrize("part", ["rms", "core"])
def test_statistics_that_are_all_zero(tiny_model, file, part):
    """Statistics without any gradient cannot carry the rule that divides by them; its kind is named."""
    kind = {"rms": "output_bias", "core": "subspace"}[part]
    zeros = {
        name: torch.zeros_like(tensor)
        for name, tensor in load_file(file).items()
        if name.startswith(part) or (name.startswith("rms") and name.endswith("bias"))
    }
    rewritten(file, **zeros)
    with pytest.raises(CalibrationError, match=f"{file}: the statistics of {kind} of .* all zero"):
        load_calibration(file, tiny_model())


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
def test_bad_metadata(tiny_model, file, fault):
    """A file without rules is refused, and named."""
    rewritten(file, metadata=BAD_METADATA[fault])
    with pytest.raises(CalibrationError, match=f"^{file}: "):
        load_calibration(file, tiny_model())


def with_rules(path, **changes):
    """The file with other metadata beside its tensors."""
    rewritten(path, metadata={"adaptation": json.dumps({**rules_in(path), **changes})})


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_format_is_refused(tiny_model, file, version):
    """An old file, or a newer one, cannot be read as this one: the user is told what to do."""
    with_rules(file, format_version=version)
    with pytest.raises(CalibrationError, match=f"{file}: is not of format 2: calibrate the model again"):
        load_calibration(file, tiny_model())


def test_the_file_of_an_earlier_version_is_refused(tiny_model, path):
    """It had one rule, and tensors by the names of the weights."""
    model = tiny_model()
    tensors = {name: torch.ones_like(weight).bfloat16() for name, weight in model.named_parameters()}
    old = {"format_version": 1, "kind": "full", "rule": "rms", "rate": 1e-3, "segment": 20}
    save_file(tensors, path, metadata={"adaptation": json.dumps(old)})
    with pytest.raises(CalibrationError, match="calibrate the model again"):
        load_calibration(path, model)


@pytest.mark.parametrize("rules", [None, {}, "full", [None], [[]]], ids=str)
def test_rules_must_be_a_list_of_rules(tiny_model, file, rules):
    """Anything else is refused."""
    with_rules(file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{file}: .*(list of rules|must be an object)"):
        load_calibration(file, tiny_model())


def test_there_must_be_rules_and_nothing_beside_them(tiny_model, file):
    """No rule at all, or a field that is not known."""
    for changes, says in (({"rules": []}, "at least one rule"), ({"more": 1}, "nothing else")):
        with_rules(file, **changes)
        with pytest.raises(CalibrationError, match=f"{file}: .*{says}"):
            load_calibration(file, tiny_model())
        with_rules(file, rules=[])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", -1),
        ("segment", True),
        ("rule", "adam"),
        ("decay", 1e999),
        ("kind", "none"),
        ("coordinates", 0),
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_a_bad_rule_names_file_and_field(tiny_model, file, field, value, place):
    """A wrong value in any rule."""
    rules = rules_in(file)["rules"]
    rules[place][field] = value
    with_rules(file, rules=rules)
    with pytest.raises(CalibrationError, match=f"{file}: {field}"):
        load_calibration(file, tiny_model())


@pytest.mark.parametrize(
    ("kind", "coordinates"), [("full", 10), ("output_bias", 12), ("subspace", 100_000), ("sparse", 9)]
)
def test_a_rule_of_what_is_not_there(tiny_model, config, file, kind, coordinates):
    """Of another size than the statistics have, or of a kind that was not measured."""
    with_rules(file, rules=[config(kind=kind, coordinates=coordinates).to_json()])
    with pytest.raises(CalibrationError, match=f"{file}: .*({coordinates}|{kind})"):
        load_calibration(file, tiny_model())


def test_two_rules_of_one_size(tiny_model, file):
    """Nobody could choose between them."""
    rules = rules_in(file)["rules"]
    with_rules(file, rules=[*rules, rules[0]])
    with pytest.raises(CalibrationError, match=f"{file}: two rules"):
        load_calibration(file, tiny_model())


@pytest.mark.parametrize("keep", [0, 7, 8, 200, -1])
def test_a_truncated_file(tiny_model, file, keep):
    """A file cut anywhere is refused, and named."""
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CalibrationError, match=str(file)):
        load_calibration(file, tiny_model())


@pytest.mark.parametrize(
    "content", [b"no safetensors file at all, just some text", b"\xff" * 64, b"\x00" * 64]
)
def test_another_kind_of_file(tiny_model, file, content):
    """Any other bytes are refused, and the file is named."""
    file.write_bytes(content)
    with pytest.raises(CalibrationError, match=str(file)):
        load_calibration(file, tiny_model())


def test_no_file(tiny_model, tmp_path):
    """A file that is missing, or a folder in its place, is named."""
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(CalibrationError, match=str(path)):
            load_calibration(path, tiny_model())


def test_a_calibration_of_another_model(tiny_model, file):
    """A model of another shape does not take it."""
    with pytest.raises(CalibrationError, match=str(file)):
        load_calibration(file, tiny_model(hidden_size=6))

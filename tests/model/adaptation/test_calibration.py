"""Gradient statistics against a loop by hand, and the file that holds them."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlstm_model.adaptation.calibration import Calibration, CalibrationError, measure_rms

BOS = 1


def rms_by_hand(model, texts, segment, reduction):
    """Root of the mean square of every segment's gradient, by autograd over single steps."""
    model.requires_grad_(True)
    gradients = []
    for ids in texts:
        state, last = model.initial_state(1), BOS
        while len(ids) >= segment:
            loss, state = 0.0, state.detach()
            for token in ids[:segment]:
                features, state = model.step(torch.tensor([last]), state)
                loss, last = loss - model.log_probs(features)[0, token], token
            loss = loss / segment if reduction == "mean" else loss
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradients.append(torch.cat([part.flatten() for part in parts]))
            ids = ids[segment:]
    return torch.stack(gradients).square().mean(0).sqrt(), len(gradients)


@pytest.fixture
def file(tiny_model, calibration, tmp_path):
    """A good calibration file."""
    path = tmp_path / "adaptation.safetensors"
    model = tiny_model()
    calibration(model).save(path, model)
    return path


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("tied", [False, True])
def test_pitfall_27_and_33_rms_by_hand(tiny_model, text, reduction, tied):
    """Statistics are those of the stated reduction and segment, state carried, tied weights counted once."""
    model = tiny_model(dtype=torch.float64, tie_embeddings=tied)
    texts = [text(13, seed=1), text(3, seed=2), text(8, seed=3)]
    rms_P, count = measure_rms(model, texts, segment=4, reduction=reduction, bos_id=BOS)
    expected, expected_count = rms_by_hand(model, texts, 4, reduction)
    assert count == expected_count == 5
    torch.testing.assert_close(rms_P, expected, rtol=1e-10, atol=1e-14)


def test_measuring_in_single_precision(tiny_model, text):
    """Float32 statistics are the float64 ones to a few digits, and leave the model alone."""
    texts = [text(40)]
    single, double = tiny_model(), tiny_model().double()
    before = [weight.clone() for weight in single.parameters()]
    rms_P, _ = measure_rms(single, texts, segment=4, reduction="mean", bos_id=BOS)
    expected, _ = measure_rms(double, texts, segment=4, reduction="mean", bos_id=BOS)
    assert rms_P.dtype == torch.float32
    torch.testing.assert_close(rms_P.double(), expected, rtol=1e-3, atol=1e-6)
    assert all(torch.equal(weight, copy) for weight, copy in zip(single.parameters(), before, strict=True))


def test_rows_of_tokens_that_never_occur_have_no_rms(tiny_model):
    """An input embedding that was never read has zero statistics: the rule must cope (pitfall 29)."""
    model = tiny_model()
    rms_P, _ = measure_rms(model, [[2, 3] * 4], segment=4, reduction="mean", bos_id=BOS)
    rows = rms_P[: 11 * model.config.hidden_size].view(11, -1).any(1)
    assert rows.nonzero().flatten().tolist() == [1, 2, 3]


@pytest.mark.parametrize("texts", [[], [[]], [[1, 2, 3]]])
def test_too_little_text(tiny_model, texts):
    """Statistics of no segment are none."""
    with pytest.raises(ValueError, match="segment of 4"):
        measure_rms(tiny_model(), texts, segment=4, reduction="mean", bos_id=BOS)


@pytest.mark.parametrize("shape", [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rounds": 0}])
def test_file_round_trip(tiny_model, calibration, tmp_path, shape):
    """A file gives back the config, and the statistics rounded to bfloat16; once rounded, all bits."""
    model, path = tiny_model(**shape), tmp_path / "adaptation.safetensors"
    first = calibration(model, rule="sgd", decay=0.1)
    first.save(path, model)
    second = Calibration.load(path, model)
    assert second.config == first.config
    assert torch.equal(second.rms_P, first.rms_P.bfloat16().float())
    second.save(path, model)
    assert Calibration.load(path, model).fingerprint == second.fingerprint
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_file_takes_the_precision_of_the_model(tiny_model, file):
    """A float64 model gets float64 statistics."""
    assert Calibration.load(file, tiny_model(dtype=torch.float64)).rms_P.dtype == torch.float64


def test_fingerprint_is_stable(tiny_model, calibration):
    """Equal numbers, equal fingerprint: also in another precision that rounds nothing."""
    first, second = calibration(tiny_model()), calibration(tiny_model())
    assert first.fingerprint == second.fingerprint
    assert dataclasses.replace(first, rms_P=first.rms_P.double()).fingerprint == first.fingerprint


OTHERS = {
    "kind": None,
    "rule": "sgd",
    "rate": 0.021,
    "segment": 5,
    "reduction": "sum",
    "statistics_batch": 2,
    "statistics_segments": 8,
    "decay": 0.01,
    "epsilon": 0.2,
    "max_norm_ratio": 0.4,
}


@pytest.mark.parametrize("name", [name for name, value in OTHERS.items() if value is not None])
def test_fingerprint_depends_on_every_field(tiny_model, calibration, name):
    """Another value of any field is another calibration (there is but one kind)."""
    model = tiny_model()
    assert set(OTHERS) == {field.name for field in dataclasses.fields(calibration(model).config)}
    assert calibration(model, **{name: OTHERS[name]}).fingerprint != calibration(model).fingerprint


def test_fingerprint_depends_on_every_weight(tiny_model, calibration):
    """The last bit of the last statistic shows."""
    first = calibration(tiny_model())
    changed = first.rms_P.clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(2.0))
    assert dataclasses.replace(first, rms_P=changed).fingerprint != first.fingerprint


def test_with_rate(tiny_model, calibration):
    """Another rate keeps statistics and decay; a decay can be set beside it."""
    first = calibration(tiny_model(), decay=0.1)
    second, third = first.with_rate(0.5), first.with_rate(0.5, 0.0)
    assert (second.config.rate, second.config.decay, third.config.decay) == (0.5, 0.1, 0.0)
    assert second.rms_P is first.rms_P
    assert first.config.rate == 0.02


def rewritten(path, *, metadata=None, **tensors):
    """The file with some tensors replaced (None: left out) and other metadata."""
    stored = {**load_file(path), **tensors}
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    save_file(kept, path, metadata=metadata)


def good_metadata(config, **changes):
    return {"adaptation": json.dumps({**config().to_json(), **changes})}


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (None, "missing"),
        (torch.ones(10, dtype=torch.bfloat16), "shape"),
        (torch.ones(11, 1, dtype=torch.bfloat16), "shape"),
        (torch.ones(11), "F32"),
        (torch.ones(11, dtype=torch.int64), "I64"),
        (torch.full((11,), float("nan"), dtype=torch.bfloat16), "not finite"),
        (torch.full((11,), float("inf"), dtype=torch.bfloat16), "not finite"),
        (torch.full((11,), -1.0, dtype=torch.bfloat16), "negative"),
    ],
    ids=["missing", "size", "shape", "precision", "integers", "nan", "infinity", "negative"],
)
def test_a_bad_tensor_is_named(tiny_model, config, file, tensor, says):
    """Whatever is wrong with a tensor, the error names file, tensor and fault."""
    rewritten(file, metadata=good_metadata(config), **{"embedding.bias": tensor})
    with pytest.raises(CalibrationError, match=rf"{file}.*embedding\.bias.*{says}"):
        Calibration.load(file, tiny_model())


def test_a_tensor_too_many_is_named(tiny_model, config, file):
    """A tensor of another model is named."""
    rewritten(file, metadata=good_metadata(config), **{"stack.layers.7.x": torch.ones(1)})
    with pytest.raises(CalibrationError, match=rf"{file}.*stack\.layers\.7\.x"):
        Calibration.load(file, tiny_model())


def test_statistics_that_are_all_zero(tiny_model, config, file):
    """Statistics without any gradient cannot carry the rule."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
    rewritten(file, metadata=good_metadata(config), **zeros)
    with pytest.raises(CalibrationError, match=f"{file}.*zero"):
        Calibration.load(file, tiny_model())


BAD_CONFIGS = ["{", "[]", "null", "{}", "[" * 100_000, '{"format_version": 9}']


@pytest.mark.parametrize(
    "metadata",
    [None, {"other": "{}"}, *({"adaptation": text} for text in BAD_CONFIGS)],
    ids=["none", "other", "broken", "list", "null", "empty", "deep", "version"],
)
def test_bad_metadata(tiny_model, file, metadata):
    """A file without a complete config is refused, and named."""
    rewritten(file, metadata=metadata)
    with pytest.raises(CalibrationError, match=str(file)):
        Calibration.load(file, tiny_model())


@pytest.mark.parametrize(
    ("field", "value"), [("rate", -1), ("segment", True), ("rule", "adam"), ("decay", 1e999)]
)
def test_bad_config_names_file_and_field(tiny_model, config, file, field, value):
    """A config with a wrong value is refused; the error names file and field."""
    rewritten(file, metadata=good_metadata(config, **{field: value}))
    with pytest.raises(CalibrationError, match=f"{file}.*{field}"):
        Calibration.load(file, tiny_model())


@pytest.mark.parametrize("keep", [0, 7, 8, 200, -1])
def test_truncated_file(tiny_model, file, keep):
    """A file cut anywhere is refused, and named."""
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CalibrationError, match=str(file)):
        Calibration.load(file, tiny_model())


@pytest.mark.parametrize(
    "content", [b"no safetensors file at all, just some text", b"\xff" * 64, b"\x00" * 64]
)
def test_another_kind_of_file(tiny_model, file, content):
    """Any other bytes are refused, and the file is named."""
    file.write_bytes(content)
    with pytest.raises(CalibrationError, match=str(file)):
        Calibration.load(file, tiny_model())


def test_no_file(tiny_model, tmp_path):
    """A file that is missing, or a folder in its place, is named."""
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(CalibrationError, match=str(path)):
            Calibration.load(path, tiny_model())


def test_a_calibration_of_another_model(tiny_model, file):
    """A model of another shape does not take it."""
    with pytest.raises(CalibrationError, match=str(file)):
        Calibration.load(file, tiny_model(hidden_size=6))

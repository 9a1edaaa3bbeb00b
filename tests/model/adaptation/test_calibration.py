"""Gradient statistics against a loop by hand; the rules of a checkpoint, and which of them is meant."""

import dataclasses

import pytest
import torch

from rlstm_model.adaptation.calibration import (
    CalibrationSet,
    NotCalibrated,
    measure_rms,
)
from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.torch_backend.subspace import Basis

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


OTHERS = {
    "kind": "output_bias",
    "num_fast_weights": 2,
    "rank": 1,
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


@pytest.mark.parametrize("name", OTHERS)
def test_fingerprint_depends_on_every_field(tiny_model, calibration, name):
    """Another value of any field is another calibration."""
    first = calibration(tiny_model())
    assert set(OTHERS) == {field.name for field in dataclasses.fields(first.config)}
    first = dataclasses.replace(first, config=dataclasses.replace(first.config, kind="subspace"))
    config = dataclasses.replace(first.config, **{name: OTHERS[name]})
    assert dataclasses.replace(first, config=config).fingerprint != first.fingerprint


def another_axis(space):
    name, basis = next(iter(space.bases.items()))
    return {"bases": {**space.bases, name: Basis(basis.left, -basis.right)}}


@pytest.mark.parametrize(
    "changes",
    [
        another_axis,
        lambda space: {"biases": space.biases[::-1]},
        lambda space: {"chosen_P": torch.arange(space.size)},
        lambda space: {"storage": torch.float16},
    ],
    ids=["axes", "biases", "chosen", "storage"],
)
def test_fingerprint_depends_on_the_space(tiny_model, calibration, changes):
    """The same numbers are of other weights in another space: its axes, order, places and precision show."""
    first = calibration(tiny_model(), rank=2)
    other = dataclasses.replace(first, space=dataclasses.replace(first.space, **changes(first.space)))
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("rank", [None, 2])
def test_another_model_is_refused(tiny_model, calibration, rank):
    """Statistics are of one shape of model, and a space is."""
    with pytest.raises(ValueError, match=r"(the model has \d+$|not of this model's)"):
        calibration(tiny_model(), rank=rank).fast_weights(tiny_model(hidden_size=6))


@pytest.mark.parametrize("rank", [None, 2])
def test_a_rule_of_another_size_is_refused(tiny_model, calibration, rank):
    """What a rule says of its size must be true of its statistics."""
    model = tiny_model()
    first = calibration(model, rank=rank)
    config = dataclasses.replace(first.config, num_fast_weights=first.config.num_fast_weights - 1)
    with pytest.raises(ValueError, match=f"of {config.num_fast_weights} weights and has {len(first.rms_P)}"):
        dataclasses.replace(first, config=config).fast_weights(model)


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_bias_is_a_part_of_all_weights(tiny_model, statistics, config, tied):
    """Its statistics and its gradients are those that full fast weights have of it."""
    model = tiny_model(dtype=torch.float64, tie_embeddings=tied)
    measured = statistics(model)
    found = measured.calibration(model, config(kind="output_bias", num_fast_weights=11))
    whole, part = FullFastWeights(model), found.fast_weights(model)
    assert torch.equal(found.rms_P, whole.split(measured.full_P)["embedding.bias"])
    ids, weights = torch.tensor([[1], [2], [3]]), torch.full((2, 1), 0.5, dtype=torch.float64)
    lesson = (ids[:-1], ids[1:], weights, model.initial_state(1))
    expected = whole.split(whole.learn(None, *lesson).gradient_NP[0])["embedding.bias"]
    torch.testing.assert_close(part.learn(None, *lesson).gradient_NP[0], expected, atol=1e-14, rtol=0)


def test_a_subspace_has_its_greatest_coordinates(tiny_model, statistics, config):
    """As many as the rule says."""
    model = tiny_model()
    measured = statistics(model, rank=2)
    found = measured.calibration(model, config(kind="subspace", num_fast_weights=50))
    space, rms_P = measured.subspace.greatest(model, 50)
    assert torch.equal(found.rms_P, rms_P)
    assert torch.equal(found.space.chosen_P, space.chosen_P)
    assert found.fast_weights(model).size == 50


@pytest.mark.parametrize("kind", ["subspace"])
def test_a_kind_that_was_not_measured_is_refused(tiny_model, statistics, config, kind):
    """The error names the kind."""
    model = tiny_model()
    with pytest.raises(ValueError, match=kind):
        statistics(model).calibration(model, config(kind=kind, num_fast_weights=8))


@pytest.fixture
def calibrated(tiny_model, statistics, config):
    """Rules for two sizes of subspaces and for full fast weights, the larger subspace first."""
    model = tiny_model()
    measured = statistics(model, rank=2)
    sizes = [("subspace", 60), ("subspace", 30), ("full", len(measured.full_P))]
    choices = tuple(config(kind=kind, num_fast_weights=size) for kind, size in sizes)
    return CalibrationSet(model=model, statistics=measured, choices=choices, fingerprint="of a file")


@pytest.mark.parametrize(
    ("asked", "place"),
    [((), 0), (("subspace",), 0), (("subspace", 30), 1), ((None, 30), 1), (("full",), 2), (("full", 377), 2)],
)
def test_the_first_rule_that_fits_is_found(calibrated, asked, place):
    """Nothing asked for: the default; a kind or a size alone: the first of it."""
    kind, num_fast_weights = (*asked, None, None)[:2]
    num_fast_weights = calibrated.choices[2].num_fast_weights if num_fast_weights == 377 else num_fast_weights
    assert calibrated.find(kind, num_fast_weights) is calibrated.choices[place]
    assert calibrated.default is calibrated.choices[0]


@pytest.mark.parametrize("asked", [("output_bias", None), ("subspace", 31), (None, 31)])
def test_what_is_not_calibrated_is_refused(calibrated, asked):
    """The error names what there is."""
    with pytest.raises(NotCalibrated, match="subspace of 60, subspace of 30, full of"):
        calibrated.find(*asked)


def test_a_rule_takes_the_place_of_that_of_its_size(calibrated, config):
    """Another rate for a size: the others stay as they are, and in their order."""
    changed = config(kind="subspace", num_fast_weights=30, rate=0.5)
    first, _, third = calibrated.choices
    assert calibrated.including(changed).choices == (first, changed, third)


@pytest.mark.parametrize("num_fast_weights", [7, 30])
def test_a_rule_may_become_the_default(calibrated, config, num_fast_weights):
    """New or known, it comes first, and the others keep their order."""
    chosen = config(kind="subspace", num_fast_weights=num_fast_weights)
    others = tuple(choice for choice in calibrated.choices if choice.num_fast_weights != num_fast_weights)
    assert calibrated.including(chosen, first=True).choices == (chosen, *others)


def test_rules_that_nobody_could_choose_from(calibrated, config):
    """None at all, or two of one kind and size."""
    twice = (calibrated.default, config(kind="subspace", num_fast_weights=60, rate=0.5))
    for choices, says in (((), "at least one rule"), (twice, "same kind and size")):
        with pytest.raises(ValueError, match=says):
            dataclasses.replace(calibrated, choices=choices)

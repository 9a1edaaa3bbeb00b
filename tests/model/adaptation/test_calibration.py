"""Gradient statistics, the rules of a checkpoint, and which of them is meant."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model import drawn

from rlstm_model.adaptation.backend import NativeBackend
from rlstm_model.adaptation.calibration import Calibration, CalibrationSet, NotCalibrated
from rlstm_model.native.packed import Axes, Space

PARAMETERS = drawn.parameters_of()
SHAPES = [{}, {"tie_embeddings": True}, {"cell": "lstm", "mogrifier_rank": 0}, {"mogrifier_rounds": 0}]


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
def test_fingerprint_depends_on_every_field(name):
    """Another value of any field is another calibration."""
    first = drawn.calibration_of(PARAMETERS)
    assert set(OTHERS) == {field.name for field in fields(first.config)}
    first = replace(first, config=replace(first.config, kind="subspace"))
    config = replace(first.config, **{name: OTHERS[name]})
    assert replace(first, config=config).fingerprint != first.fingerprint


def another_axis(space):
    name, axes = next(iter(space.axes.items()))
    return {"axes": {**space.axes, name: Axes(axes.left, -axes.right)}}


@pytest.mark.parametrize(
    "changes",
    [
        another_axis,
        lambda space: {"biases": space.biases[::-1]},
        lambda _: {"chosen_P": np.arange(9)},
        lambda _: {"dtype": np.float16},
    ],
    ids=["axes", "biases", "chosen", "storage"],
)
def test_fingerprint_depends_on_the_space(changes):
    """The same numbers are of other weights in another space: its axes, order, places and precision show."""
    first = drawn.calibration_of(PARAMETERS)
    other = replace(first, space=first.space._replace(**changes(first.space)))
    assert other.fingerprint != first.fingerprint


def elements_by_hand(measured, rank):
    """All elements in their order: whether it is of a cell, its RMS, its weight, its place."""
    for name, part in measured.rms.items():
        if name in measured.axes:
            part = measured.cores[name][..., : rank or None, : rank or None]
        elif not name.endswith("bias"):
            continue
        cell = name.startswith("stack") and not name.endswith("bias")
        yield from ((cell, -float(value), name, place) for place, value in np.ndenumerate(part))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [0, 2, 18])
def test_a_subspace_has_its_greatest_elements(statistics, shape, rank):
    """The embedding and the biases before any cell, each by RMS; among equals the first."""
    measured = statistics(drawn.parameters_of(hidden_size=20, **shape), rank=18)
    everything = [*elements_by_hand(measured, rank)]
    for count in (1, 7, 40, len(everything)):
        found = measured.calibration(drawn.rule_of(count, rank=rank))
        names = [*found.space.axes, *found.space.biases]
        places, last = [], {}
        for name in names:
            axes = found.space.axes.get(name)
            inside = measured.rms[name].shape
            if axes is not None:
                inside = (*axes.left.shape[:-2], axes.left.shape[-1], axes.right.shape[-2])
            places += [(name, place) for place in np.ndindex(inside)]
        chosen = found.space.chosen_P
        listed = places if chosen is None else [places[i] for i in chosen]
        expected = sorted(everything, key=lambda each: each[:2])[:count]
        assert set(listed) == {each[2:] for each in expected}
        rms = {each[2:]: -each[1] for each in expected}
        assert found.rms_P.tolist() == [rms[place] for place in listed]
        for name, place in listed:  # axes reach as far as what is chosen, in sixteens
            last[name] = np.maximum(last.get(name, 0), place)
        for name, axes in found.space.axes.items():
            whole = measured.axes[name]
            rows, columns = (
                min(-(-(int(end) + 1) // 16) * 16, *([rank] if rank else []), side)
                for end, side in zip(last[name][-2:], measured.cores[name].shape[-2:], strict=True)
            )
            assert axes.left.tobytes() == whole.left[..., :rows].tobytes()
            assert axes.right.tobytes() == whole.right[..., :columns, :].tobytes()


def test_the_output_bias_and_full_weights_are_parts_of_what_was_measured(statistics):
    measured = statistics(PARAMETERS)
    bias = measured.calibration(drawn.rule_of(19, kind="output_bias"))
    assert bias.rms_P.tobytes() == measured.rms["embedding.bias"].tobytes()
    size = PARAMETERS.config.num_parameters
    full = measured.calibration(drawn.rule_of(size, kind="full"))
    assert full.rms_P.tobytes() == b"".join(part.tobytes() for part in measured.rms.values())
    assert full.space.whole


def test_what_does_not_fit_is_refused(statistics):
    """A kind that was not measured, sizes that are not the statistics', and those of another model."""
    measured, bare = statistics(PARAMETERS), statistics(PARAMETERS, rank=0)
    most = sum(1 for _ in elements_by_hand(measured, 0))
    for count in (0, most + 1):
        with pytest.raises(ValueError, match=f"1 to {most} fast weights, not {count}"):
            measured._greatest(count, 0)
    for kind, size, of, says in (
        ("subspace", 8, bare, "subspace needs was not measured"),
        ("output_bias", 18, measured, "19 fast weights of that kind, not 18"),
        ("full", 7, measured, "not 7"),
    ):
        with pytest.raises(ValueError, match=says):
            of.calibration(drawn.rule_of(size, kind=kind))


def under(rms, **changes):
    """A calibration of so many fast weights."""
    rms_P = np.array(rms, np.float32)
    return Calibration(config=drawn.rule_of(len(rms_P), **changes), rms_P=rms_P, space=Space({}, ()))


@given(
    st.lists(st.just(0.0) | st.floats(0.0625, 2, width=32), min_size=1, max_size=6).filter(any),
    st.floats(0, 60),
    st.floats(0.01, 3),
    st.floats(0.01, 3),
)
def test_a_rule_is_the_formula(rms, decay, epsilon, ratio):
    """docs/adaptation.md §1, one weight at a time: the clipped pull, epsilon times the mean RMS, the limit.

    Weights without statistics take bounded steps, and nothing of them decays (pitfall 29).
    """
    rule = under(rms, decay=decay, epsilon=epsilon, max_norm_ratio=ratio).rule(7.0)
    mean = sum(rms) / len(rms)
    np.testing.assert_allclose(rule.precision_P, [1 / (r + epsilon * mean) for r in rms], rtol=1e-5)
    pull = [min(1.0, decay * r / mean) for r in rms]
    np.testing.assert_allclose(np.broadcast_to(rule.shrink_P, len(rms)), pull, rtol=1e-5, atol=1e-30)
    assert rule.max_norm == pytest.approx(7.0 * ratio)
    plain = under(rms, rule="sgd", decay=decay, max_norm_ratio=ratio).rule(7.0)
    assert (plain.precision_P, plain.shrink_P, plain.max_norm) == (None, min(1.0, decay), rule.max_norm)


def test_statistics_that_are_all_zero_carry_no_rule_that_divides():
    with pytest.raises(ValueError, match="all zero"):
        under([0.0, 0.0]).rule(1.0)
    assert under([0.0, 0.0], rule="sgd").rule(1.0).precision_P is None


@pytest.mark.parametrize("kind", ["subspace", "full", "output_bias"])
def test_a_mixture_of_softmaxes_learns_nothing(make_calibrated, kind):
    """It is only scored; a backend says so before it reads."""
    parameters = drawn.parameters_of(softmax_components=2)
    calibration = make_calibrated(softmax_components=2).choose(kind)
    with pytest.raises(ValueError, match="mixture of softmaxes"):
        NativeBackend(parameters, calibration)


@pytest.fixture
def calibrated(statistics):
    """Rules for two sizes of subspaces and for full fast weights, the larger subspace first."""
    sizes = [("subspace", 60), ("subspace", 30), ("full", PARAMETERS.config.num_parameters)]
    choices = tuple(drawn.rule_of(size, kind=kind) for kind, size in sizes)
    return CalibrationSet(statistics=statistics(PARAMETERS), choices=choices, fingerprint="of a file")


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


def test_a_rule_takes_the_place_of_that_of_its_size(calibrated):
    """Another rate for a size: the others stay as they are, and in their order."""
    changed = drawn.rule_of(30, rate=0.5)
    first, _, third = calibrated.choices
    assert calibrated.including(changed).choices == (first, changed, third)


@pytest.mark.parametrize("num_fast_weights", [7, 30])
def test_a_rule_may_become_the_default(calibrated, num_fast_weights):
    """New or known, it comes first, and the others keep their order."""
    chosen = drawn.rule_of(num_fast_weights)
    others = tuple(choice for choice in calibrated.choices if choice.num_fast_weights != num_fast_weights)
    assert calibrated.including(chosen, first=True).choices == (chosen, *others)


def test_rules_that_nobody_could_choose_from(calibrated):
    """None at all, or two of one kind and size."""
    twice = (calibrated.default, drawn.rule_of(60, rate=0.5))
    for choices, says in (((), "at least one rule"), (twice, "same kind and size")):
        with pytest.raises(ValueError, match=says):
            replace(calibrated, choices=choices)

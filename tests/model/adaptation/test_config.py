"""AdaptationConfig checks itself and survives JSON."""

import dataclasses
import json

import pytest

from rlstm_model.adaptation.config import AdaptationConfig, AdaptationConfigError

WRONG = {
    "kind": ["dense", None, ["full"]],
    "num_fast_weights": [0, -1, 3.0, True, "20", None],
    "rank": [-1, 2.0, True, "20", None],
    "rule": ["adam", "RMS", 1],
    "rate": [-1e-9, float("nan"), float("inf"), 10**400, True, "1", None],
    "segment": [0, -1, 2.0, True, "20", None],
    "reduction": ["average", None, {}],
    "statistics_batch": [0, 1.5, False, None],
    "statistics_segments": [0, 1.5, True, None],
    "decay": [-0.1, float("nan"), True, None],
    "epsilon": [-0.1, 0, float("inf"), "0.1"],
    "max_norm_ratio": [-0.5, float("nan"), None],
}


def test_json_round_trip(config):
    """What to_json gives, through JSON text, is the same config again."""
    first = config(rule="sgd", rate=0.25, decay=0.125, reduction="sum")
    assert AdaptationConfig.from_json(json.loads(json.dumps(first.to_json()))) == first


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_wrong_value_names_its_field(config, name, value):
    """A value of the wrong type or range is refused, and the message names the field."""
    with pytest.raises(AdaptationConfigError, match=name):
        config(**{name: value})


def test_every_field_is_checked(config):
    """No field was forgotten in the table above."""
    assert set(WRONG) == {field.name for field in dataclasses.fields(config())}


@pytest.mark.parametrize(
    "name",
    [
        "rate",
        "segment",
        "reduction",
        "statistics_batch",
        "statistics_segments",
        "kind",
        "num_fast_weights",
        "rule",
    ],
)
def test_pitfall_27_nothing_that_a_rate_depends_on_has_a_default(config, name):
    """A rate without the loss reduction, segment length and statistics it was chosen for is refused."""
    values = dataclasses.asdict(config())
    del values[name]
    with pytest.raises(TypeError, match=name):
        AdaptationConfig(**values)


@pytest.mark.parametrize("kind", ["full", "subspace", "sparse", "output_bias"])
def test_every_kind_has_a_name(config, kind):
    """All kinds of adaptation: §2 may be stored."""
    assert AdaptationConfig.from_json(config(kind=kind).to_json()).kind == kind


@pytest.mark.parametrize("version", [1, 3, "2", True, None])
def test_another_version_is_refused(config, version):
    """Whatever else is right with it."""
    with pytest.raises(AdaptationConfigError, match="format_version"):
        AdaptationConfig.from_json({**config().to_json(), "format_version": version})


def test_epsilon_zero_is_fine_without_statistics(config):
    """Only the rule that divides by the RMS needs epsilon."""
    assert config(rule="sgd", epsilon=0.0).epsilon == 0.0


@pytest.mark.parametrize("data", [[], None, "full", 3, {}, {"format_version": 2}, {"format_version": True}])
def test_no_config_at_all(data):
    """JSON that is no object, or of another version, is refused."""
    with pytest.raises(AdaptationConfigError):
        AdaptationConfig.from_json(data)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(AdaptationConfig)])
def test_missing_field_is_named(config, name):
    """A stored config must be complete: defaults are for code, not for files."""
    data = config(kind="subspace").to_json()
    del data[name]
    with pytest.raises(AdaptationConfigError, match=name):
        AdaptationConfig.from_json(data)


@pytest.mark.parametrize("kind", ["full", "sparse", "output_bias"])
def test_only_a_subspace_has_a_rank(config, kind):
    """Other kinds have no axes: a rank is refused, in code and in a file."""
    with pytest.raises(AdaptationConfigError, match="rank"):
        config(kind=kind, rank=3)
    with pytest.raises(AdaptationConfigError, match="rank"):
        AdaptationConfig.from_json({**config(kind=kind).to_json(), "rank": 0})


def test_unknown_field_is_named(config):
    """A field that we do not know might change the rule: it is refused."""
    with pytest.raises(AdaptationConfigError, match="momentum"):
        AdaptationConfig.from_json({**config().to_json(), "momentum": 0.9})

"""ModelConfig: counts, the budget solver, and what it refuses."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.config import ConfigError, ModelConfig
from rlstm_model.parameters import shapes

SHAPES = st.builds(
    ModelConfig,
    vocab_size=st.integers(1, 12),
    hidden_size=st.integers(1, 6),
    num_layers=st.integers(1, 3),
    cell=st.sampled_from(["rlstm", "lstm"]),
    mogrifier_rounds=st.integers(0, 6),
    mogrifier_rank=st.integers(0, 3),
    mogrifier_bias=st.booleans(),
    tie_embeddings=st.booleans(),
)

# budget, V, L, r, k, tied, hidden size of LSTM, RLSTM, RLSTM without mogrifier (docs/mathematics.md §1.4).
TABLE = [
    (24_000_000, 10001, 2, 5, 84, True, 912, 956, 999),
    (35_000_000, 33279, 2, 6, 48, True, 752, 772, 788),
    (24_000_000, 51, 2, 4, 24, False, 1209, 1291, 1305),
    (48_000_000, 206, 6, 6, 79, False, 937, 998, 1063),
    (96_000_000, 206, 6, 5, 61, False, 1371, 1463, 1506),
    (48_000_000, 206, 4, 6, 79, False, 1160, 1235, None),
    (96_000_000, 206, 4, 5, 61, False, 1687, 1800, None),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0] // 10**6}M-V{row[1]}-L{row[2]}")
def test_oracle_j_the_budget_solver_gives_the_published_sizes(row):
    """The hidden sizes of LSTM, RLSTM and RLSTM without mogrifier follow from the weight budget."""
    budget, vocab, layers, rounds, rank, tied, lstm, rlstm, plain = row
    shape = ModelConfig(
        vocab_size=vocab,
        hidden_size=1,
        num_layers=layers,
        mogrifier_rounds=rounds,
        mogrifier_rank=rank,
        tie_embeddings=tied,
    )
    assert replace(shape, cell="lstm").with_budget(budget).hidden_size == lstm
    assert shape.with_budget(budget).hidden_size == rlstm
    if plain is not None:
        assert replace(shape, mogrifier_rounds=0).with_budget(budget).hidden_size == plain


@given(SHAPES)
def test_num_parameters_counts_the_weights_of_the_model(config):
    """The formula equals the number of elements in all of the model's parameters."""
    assert config.num_parameters == sum(math.prod(shape) for shape in shapes(config).values())


def test_layers_of_several_widths_are_counted_too():
    """Embeddings of 3, layers of 5 and 4: what each layer reads is as wide as what is below it."""
    lstms = {"cell": "lstm", "mogrifier_rounds": 0, "stacking": "plain"}
    config = ModelConfig(vocab_size=7, hidden_size=5, widths=(3, 5, 4), **lstms)
    assert config.num_parameters == sum(math.prod(shape) for shape in shapes(config).values())
    assert ModelConfig.from_json(config.to_json()) == config


@given(SHAPES, st.integers(0, 100_000))
def test_the_budget_is_kept_and_used_up(config, extra):
    """One unit more would not fit, whatever the budget."""
    budget = replace(config, hidden_size=1).num_parameters + extra
    solved = config.with_budget(budget)
    assert (
        solved.num_parameters <= budget < replace(solved, hidden_size=solved.hidden_size + 1).num_parameters
    )


def test_a_budget_too_small_for_one_unit_is_refused():
    """There is no model of one weight over 256 symbols."""
    with pytest.raises(ConfigError, match="at most 1 weights"):
        ModelConfig(vocab_size=256, hidden_size=1).with_budget(1)


@given(SHAPES)
def test_json_round_trip(config):
    """A config comes back from its own JSON."""
    assert ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("hidden_size", 2.0),
        ("hidden_size", True),
        ("num_layers", 0),
        ("mogrifier_rounds", -1),
        ("mogrifier_rank", -1),
        ("mogrifier_bias", 1),
        ("tie_embeddings", None),
        ("cell", "gru"),
        ("cap_input_gate", False),
        ("widths", [2, 2]),
        ("widths", [3, 2, 2]),
        ("widths", [2, 0, 2]),
        ("widths", [1, 2, 2]),
        ("model_type", "lstm"),
    ],
)
def test_a_wrong_field_is_named(field, value):
    """The error of a bad value begins with the field's name."""
    good = ModelConfig(vocab_size=2, hidden_size=2).to_json()
    with pytest.raises(ConfigError, match=f"^{field}"):
        ModelConfig.from_json({**good, field: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format_version"),
        ({"layer_norm": True}, "layer_norm"),
        ({"cell": ...}, "cell"),
    ],
)
def test_unknown_versions_and_fields_are_refused(change, message):
    """Neither another format, nor a field too many, nor one too few is read."""
    data = {**ModelConfig(vocab_size=2, hidden_size=2).to_json(), **change}
    data = {name: value for name, value in data.items() if value is not ...}
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_json(data)


def test_a_config_must_be_an_object():
    """A JSON list is no config."""
    with pytest.raises(ConfigError, match="JSON object"):
        ModelConfig.from_json([])

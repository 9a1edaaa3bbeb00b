"""Training speed: the arithmetic of its figures, and that every model really trains."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.bench import speed
from rlstm_training.bench.speed import (
    TORCH,
    Case,
    Workload,
    cases,
    flops_per_token,
    measure,
    multiply_adds,
    row,
)

SMALL = Workload(hidden=8, rank=2, vocabulary=11, batch=2, window=3)
CPU = torch.device("cpu")


def _case(name="RLSTM", beside="LSTM"):
    return Case(name=name, beside=beside, parameters=10, flops_per_token=60, turn=lambda: None)


def test_ratios_are_taken_within_a_round_before_the_median():
    """A machine ten times slower in one round changes the speeds of that round and no ratio."""
    fast = {"": 12_000.0, "RLSTM": 90.0, "LSTM": 100.0, TORCH: 150.0}
    slow = {name: rate / 10 for name, rate in fast.items()}
    told = row(_case(), [fast, slow, slow])
    assert (told.tokens_per_second, told.slowest, told.fastest) == (9.0, 9.0, 90.0)
    assert told.sgemm == pytest.approx(90 * 60 / 12_000)
    assert told.our_lstm == pytest.approx(0.9)
    assert told.torch_lstm == pytest.approx(0.6)


def test_only_the_rlstm_is_compared_with_our_lstm():
    """Where there is nothing to compare with, there is no figure."""
    rates = [{"": 1.0, "LSTM": 2.0, TORCH: 4.0}]
    assert row(_case("LSTM", ""), rates).our_lstm is None


def test_operations_are_six_for_every_weight_in_a_product():
    """Written out for one small shape of each cell: matrices of layers, rounds and softmax, nothing else."""
    shape = {"vocab_size": 11, "hidden_size": 8, "num_layers": 2, "mogrifier_rounds": 3, "mogrifier_rank": 2}
    rounds, softmax = 3 * 2 * 8 * 2, 11 * 8
    rlstm, lstm = ModelConfig(**shape), ModelConfig(**shape, cell="lstm")
    assert flops_per_token(rlstm) == 6 * (2 * (7 * 64 + rounds) + softmax)
    assert flops_per_token(lstm) == 6 * (2 * (8 * 64 + rounds) + softmax)


def test_the_output_matrix_is_multiplied_once_for_each_softmax():
    """Whether it is the embedding, which else is only looked up, or one of its own."""
    cell = 7 * 64
    for tied in (False, True):
        config = ModelConfig(
            vocab_size=11, hidden_size=8, num_layers=1, mogrifier_rounds=0, tie_embeddings=tied
        )
        assert multiply_adds(LanguageModel(config)) == cell + 11 * 8
        mixed = replace(config, softmax_components=3)
        assert multiply_adds(LanguageModel(mixed)) == cell + 3 * (11 * 8 + 8 * 8 + 8)


@pytest.mark.parametrize("rounds", [0, 4])
def test_all_models_have_about_as_many_weights(rounds):
    """No name twice; the RLSTM with rounds sets the budget, torch's second bias may exceed it."""
    found = cases(Workload(hidden=40, rank=4, rounds=rounds, batch=2, window=3), CPU)
    names = [case.name for case in found]
    assert names == sorted(set(names), key=names.index)
    assert names[-1] == TORCH
    assert all(case.beside in {*names, ""} for case in found)
    budget = found[0].parameters
    assert all(0.95 * budget < case.parameters < 1.02 * budget for case in found)


def test_a_turn_gives_every_weight_a_gradient(monkeypatch):
    """Nothing that training has to do is left out."""
    made = []
    for name in ("LanguageModel", "TorchLSTM"):
        kind = getattr(speed, name)
        monkeypatch.setattr(speed, name, _recording(kind, made))
    found = cases(SMALL, CPU)
    made = [model for model in made if any(weight.any() for weight in model.parameters())]
    for case in found:
        case.turn()
    assert len(made) == len(found) == 5
    for model in made:
        assert all(weight.grad is not None for weight in model.parameters())


def _recording(kind, made):
    class Recording(kind):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            made.append(self)

    return Recording


def test_a_measurement_has_at_least_three_rounds(monkeypatch):
    """However short the time; every row has finite positive figures."""
    monkeypatch.setattr(speed, "SGEMM_SIZE", 16)
    done = []
    rows = measure(SMALL, 0.0, on_round=done.append)
    assert done == [1, 2, 3]
    assert [told.name for told in rows] == [
        "RLSTM, 4 rounds",
        "LSTM, 4 rounds",
        "RLSTM, 0 rounds",
        "LSTM, 0 rounds",
        TORCH,
    ]
    for told in rows:
        assert 0 < told.slowest <= told.tokens_per_second <= told.fastest
        assert told.sgemm > 0
        assert told.torch_lstm > 0
    assert rows[-1].torch_lstm == 1.0

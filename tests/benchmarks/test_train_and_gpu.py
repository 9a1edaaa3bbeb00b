"""Training beside torch.nn.LSTM: the arithmetic of speeds, and that all train; a GPU run in miniature."""

import json
from dataclasses import replace
from itertools import count

import pytest
import torch

from benchmarks import gpu as gpu_module
from benchmarks import train as train_module
from benchmarks.cases import multiply_adds
from benchmarks.gpu import STATISTICS, Deadline, Material, calibrate, compare, gpu, read, recipe_for_minutes
from benchmarks.train import TORCH, Case, Workload, cases, row, train
from rlstm_model.checkpoint import load
from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.config import Averaging, Recipe
from rlstm_training.evaluation.evaluation import Stream, evaluator_of, read_adapting
from rlstm_training.evaluation.measurements import Measurements, Setting
from rlstm_training.recipes import RECIPES

CPU = torch.device("cpu")


def test_ratios_are_taken_within_a_round_before_the_median():
    """A machine ten times slower in one round changes the speeds of that round and no ratio."""
    fast = {"": 12_000.0, "RLSTM": 90.0, "LSTM": 100.0, TORCH: 150.0}
    slow = {name: rate / 10 for name, rate in fast.items()}
    case = Case(name="RLSTM", beside="LSTM", parameters=10, flops_per_token=60, turn=lambda: None)
    told = row(case, [fast, slow, slow])
    assert (told.tokens_per_second, told.slowest, told.fastest) == (9.0, 9.0, 90.0)
    assert (told.sgemm, told.our_lstm, told.torch_lstm) == pytest.approx((0.45, 0.9, 0.6))
    assert row(replace(case, name="LSTM", beside=""), [fast]).our_lstm is None


def test_operations_are_those_of_weights_in_products():
    """Matrices of layers, rounds and softmax, once for each softmax; nothing else."""
    shape = {"vocab_size": 11, "hidden_size": 8, "num_layers": 2, "mogrifier_rounds": 3, "mogrifier_rank": 2}
    rounds, softmax = 3 * 2 * 8 * 2, 11 * 8
    for cell, matrices in (("rlstm", 7), ("lstm", 8)):
        config = ModelConfig(**shape, cell=cell)
        assert multiply_adds(config) == 2 * (matrices * 64 + rounds) + softmax
    mixed = ModelConfig(**shape, softmax_components=3, tie_embeddings=True)
    assert multiply_adds(mixed) == 2 * (7 * 64 + rounds) + 3 * (softmax + 8 * 8 + 8)
    assert multiply_adds(load("bytes-small").parameters.config) == 1_902_264


@pytest.mark.parametrize("rounds", [0, 4])
def test_all_models_have_about_as_many_weights(rounds):
    """No name twice; the RLSTM with rounds sets the budget, torch's second bias may exceed it."""
    found = cases(Workload(hidden=40, rank=4, rounds=rounds, batch=2, window=3), CPU)
    names = [case.name for case in found]
    assert (len(set(names)), names[-1]) == (len(names), TORCH)
    assert all(case.beside in {*names, ""} for case in found)
    budget = found[0].parameters
    assert all(0.95 * budget < case.parameters < 1.02 * budget for case in found)


def test_speed_of_training(type_command, monkeypatch):
    """One line a model, with its ratios; every weight has a gradient after a turn."""
    monkeypatch.setattr(train_module, "SGEMM_SIZE", 16)
    made, init = [], LanguageModel.__init__
    monkeypatch.setattr(
        LanguageModel, "__init__", lambda self, config: made.append(self) or init(self, config)
    )
    size = ["--hidden", 8, "--rank", 2, "--vocabulary", 11, "--batch", 2, "--window", 3, "--seconds", 0]
    done = type_command(train, *size, "--precision", "bfloat16", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["workload"].items() >= {"hidden": 8, "vocabulary": 11, "precision": "bfloat16"}.items()
    names = [f"{cell}, {rounds} rounds" for rounds in (4, 0) for cell in ("RLSTM", "LSTM")]
    assert [row["name"] for row in told["rows"]] == [*names, TORCH]
    assert told["rows"][-1]["torch_lstm"] == 1.0
    trained = [model for model in made if any(weight.grad is not None for weight in model.parameters())]
    assert len(trained) == 4
    assert all(weight.grad is not None for model in trained for weight in model.parameters())
    assert "RLSTM, 4 rounds" in type_command(train, *size).stdout
    assert "--hidden" in type_command(train, "--hidden", 0).stderr


def _ticking(tick=1.0):
    """A clock on which a second passes between two looks at it."""
    ticks = count()
    return lambda: tick * next(ticks)


@pytest.fixture
def recipe(own_folder):
    source = replace(RECIPES["tiny"]().sources[0], corpus=str(own_folder), rows=4)
    averaging = Averaging(kind="two_tailed", patience=2)
    small = ModelConfig(vocab_size=256, hidden_size=12, num_layers=2, mogrifier_rounds=2, mogrifier_rank=3)
    return replace(
        RECIPES["tiny"](), model=small, sources=(source,), averaging=averaging, window=8, learning_rate=3e-2
    )


def test_both_are_trained_and_evaluated_alike(recipe):
    """As many weights, the same seconds of a clock; however little time, there is a result."""
    material = Material.of(recipe)
    ours, torchs = compare(recipe, material, CPU, Deadline(500, _ticking()))
    assert torchs.weights == pytest.approx(ours.weights, rel=0.02)
    assert torchs.steps == pytest.approx(ours.steps, abs=2)
    assert 100 < ours.steps < 170
    for each in (ours, torchs):
        assert max(each.valid_perplexity, each.test_perplexity, each.static_perplexity) < 30
        assert each.adapted_perplexity != each.static_perplexity
    for each in compare(recipe, material, CPU, Deadline(0.0, _ticking())):
        assert (each.steps, each.read_tokens) == (1, 20)


def test_the_rate_is_of_those_tried_and_dynamic_is_the_library_s(recipe):
    """Reading the test text to its end is dynamic evaluation of it at the chosen rate."""
    material, forever = Material.of(recipe), Deadline(10**9, _ticking())
    trainer = gpu_module.torch_lstm(recipe, material.texts, CPU)
    calibration = calibrate(trainer, material, forever)
    static, adapted, tokens = read(trainer.model, calibration, material, forever)
    assert tokens == len(material.test.ids)
    again = Measurements(trainer.model, material.texts.train, bos_id=10, statistics=STATISTICS)
    rule = again.under(Setting(rate=calibration.config.rate, segment=calibration.config.segment))
    evaluator = evaluator_of(trainer.model, rule, bos_id=10)
    ((expected,),) = read_adapting(evaluator, [Stream([material.test], evaluator.start())])
    assert (static, adapted) == pytest.approx((expected.static_nats, expected.adapted_nats), rel=1e-5)


def test_the_gpu_run_in_miniature(own_folder, type_command):
    """On the CPU: both models side by side, and what minutes change of a recipe."""
    quick = ["--corpus", own_folder, "--minutes", 0.01, "--threads", 1, "--device", "cpu"]
    done = type_command(gpu, "--recipe", "tiny", *quick, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    recipe = Recipe.from_json(told["recipe"])
    assert (recipe.name, recipe.decay, told["device"]) == ("tiny", "constant", "cpu")
    assert [model["model"] for model in told["models"]] == ["RLSTM", TORCH]
    changed = recipe_for_minutes(RECIPES["words-small"](), torch.device("cuda"), 0.5)
    assert (changed.dropout.input, changed.precision, changed.validation_tokens) == (0.1, "bfloat16", 10_000)
    refused = type_command(gpu, "--recipe", "wikitext-2-35m-rlstm", "--dropout-scale", 2, "--device", "cpu")
    assert (refused.exit_code, "--dropout-scale" in refused.stderr) == (2, True)


@pytest.mark.gpu
def test_it_runs_on_a_gpu(recipe):
    """In bfloat16, and with cuDNN's LSTM, in forward, backward and dynamic evaluation."""
    cuda = torch.device("cuda")
    short = recipe_for_minutes(recipe, cuda, 1.0)
    for each in compare(short, Material.of(short), cuda, Deadline(20.0)):
        assert max(each.valid_perplexity, each.static_perplexity) < 30

from dataclasses import replace

import pytest
import torch

from rlstm_model.checkpoint import load
from rlstm_training.cards import export
from rlstm_training.config import Averaging
from rlstm_training.corpora.texts import prepare
from rlstm_training.loop import train
from rlstm_training.reporting import Reporter
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.trainer import Trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_exported_model_is_the_trained_one(corpora, toy_recipe, tmp_path, dtype):
    """The checkpoint holds the best weights, rounded to its precision, and its card their results."""
    recipe = toy_recipe(steps=4)
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        model = train(recipe, texts, run, Reporter())
        export(run, tmp_path / "model", vocab, dtype=dtype)
        valid = run.metrics()[-1]["valid"]
    checkpoint = load(tmp_path / "model")
    assert checkpoint.vocab == vocab
    for name, weight in checkpoint.model.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].to(dtype).float())
    assert "4 steps" in checkpoint.card
    assert f"| three/as_is | {valid['three/as_is']:.3f} |" in checkpoint.card


def test_a_run_without_checkpoint_cannot_be_exported(corpora, toy_recipe, tmp_path):
    """There is no model yet, and no folder is made."""
    with (
        RunDirectory.open(tmp_path / "run", toy_recipe()) as run,
        pytest.raises(RunError, match="has no checkpoint yet"),
    ):
        export(run, tmp_path / "model", prepare(toy_recipe())[1])
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", ["tail", "two_tailed"])
def test_pitfall_30_the_averaged_weights_are_exported_where_they_are_the_best(
    corpora, toy_recipe, tmp_path, kind
):
    """The model is the mean of the last iterates before the best evaluation, kept one by one in another run.

    Sessions and dynamic evaluation begin with these weights, not with the raw ones.
    """
    recipe = toy_recipe(
        steps=32,
        evaluate_every=4,
        checkpoint_every=9,
        averaging=Averaging(kind=kind, latest=6),
        optimizer="adam",
        beta1=0.0,
        learning_rate=0.2,
        decay="constant",
    )
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        train(recipe, texts, run, Reporter())
        found = min((one for one in run.metrics() if "valid" in one), key=lambda one: one["nats"]["reported"])
        exported = export(run, tmp_path / "model", vocab).state_dict()
    assert found["lengths"]["reported"] > 1
    trainer, iterates = Trainer(replace(recipe, averaging=Averaging()), texts), []
    while trainer.step < found["step"]:
        trainer.advance()
        iterates.append({name: weight.double() for name, weight in trainer.model.state_dict().items()})
    tail = iterates[-found["lengths"]["reported"] :]
    for name, weight in load(tmp_path / "model").model.state_dict().items():
        assert torch.equal(weight, exported[name])
        mean = torch.stack([iterate[name] for iterate in tail]).mean(0)
        torch.testing.assert_close(weight.double(), mean, rtol=1e-4, atol=1e-6)
        assert (weight - iterates[-1][name]).abs().max() > 1e-3


def test_the_raw_weights_are_exported_where_they_are_the_best(corpora, toy_recipe, tmp_path):
    """In a run whose loss falls fast its average lags behind; the newest checkpoint is not the best one."""
    recipe = toy_recipe(
        steps=16, evaluate_every=8, averaging=Averaging(kind="two_tailed"), learning_rate=1e-3
    )
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        model = train(recipe, texts, run, Reporter())
        (*_, last) = (record for record in run.metrics() if "valid" in record)
        assert last["lengths"]["reported"] == 1
        assert last["nats"]["long"] > last["nats"]["raw"]
        exported = export(run, tmp_path / "model", vocab)
    for name, weight in exported.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])

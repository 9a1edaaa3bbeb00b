import pytest
import torch

from rlstm_model.checkpoint import load
from rlstm_training.export import export
from rlstm_training.loop import train
from rlstm_training.reporting import Silence
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.texts import prepare


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_exported_model_is_the_trained_one(corpora, toy_recipe, tmp_path, dtype):
    """The checkpoint holds the newest weights, rounded to its precision, and its card the last results."""
    recipe = toy_recipe(steps=4)
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        model = train(recipe, texts, run, Silence())
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

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from rlstm_model.dropout import DropoutRates
from rlstm_training.batches import Texts
from rlstm_training.evaluation import striped_loss
from rlstm_training.loop import train
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import Silence
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.texts import prepare
from rlstm_training.trainer import Trainer

PLAIN = {"dropout": DropoutRates(), "dropout_samples": 1, "l2": 0.0, "reset_probability": 0.0}

# The losses of the first twenty steps of "tiny" on the words of conftest, seed 1, in nats.
GOLDEN = [
    5.53457,
    5.5425,
    5.54999,
    5.55248,
    5.56011,
    5.55114,
    5.55028,
    5.54606,
    5.53128,
    5.52452,
    5.51095,
    5.49558,
    5.48596,
    5.47146,
    5.45344,
    5.43542,
    5.41211,
    5.39699,
    5.38324,
    5.35015,
]


class _Record(Silence):
    def __init__(self):
        self.heard = []

    def started(self, step, steps):
        self.heard.append(("started", step, steps))

    def noticed(self, message):
        self.heard.append(("noticed", message))


def _curve(run):
    """The metrics without what depends on the machine's speed."""
    return [
        {k: v for k, v in record.items() if k not in ("tokens_per_second", "seconds")}
        for record in run.metrics()
    ]


def _run(folder, recipe, texts, reporter=None):
    with RunDirectory.open(folder, recipe) as run:
        return train(recipe, texts, run, reporter or Silence()), _curve(run)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_loss_falls_on_a_text_of_few_words(toy_recipe, toy_texts):
    """From near ln 256 to little more than half of it within a hundred steps."""
    trainer = Trainer(toy_recipe(**PLAIN, learning_rate=3e-2, decay="constant"), toy_texts)
    losses = [trainer.advance() for _ in range(100)]
    assert losses[0] > 5.3
    assert sum(losses[-10:]) / 10 < 3.0


def test_golden_losses(toy_texts):
    """The first steps of a recipe give the same numbers as on the day they were written down."""
    texts = replace(toy_texts, train=[(ids, 4 * rows) for ids, rows in toy_texts.train])
    trainer = Trainer(RECIPES["tiny"](), texts)
    assert [trainer.advance() for _ in range(len(GOLDEN))] == pytest.approx(GOLDEN, abs=1e-4)


def test_the_loss_is_the_text_read_by_the_model(toy_recipe, toy_texts):
    """Without dropout, a step's loss is the plain loss of the window, from the carried state."""
    trainer = Trainer(toy_recipe(**PLAIN), toy_texts)
    for _ in range(3):
        state, positions = trainer.state, trainer.batches.positions.copy()
        inputs_TB, targets_TB = trainer.batches.next()
        trainer.batches.positions = positions
        with torch.no_grad():
            features, _ = trainer.model(inputs_TB, state)
            logits = trainer.model.logits(features).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, targets_TB.flatten()).item()
        assert trainer.advance() == pytest.approx(expected, abs=1e-5)


def test_the_state_is_carried_and_cut_from_its_history(toy_recipe, toy_texts):
    """A window begins where the last one ended; no gradient reaches back."""
    trainer = Trainer(toy_recipe(**PLAIN), toy_texts)
    trainer.advance()
    assert trainer.state.h.abs().sum() > 0
    assert not trainer.state.h.requires_grad


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_state_reset_is_all_or_nothing_at_its_ends(toy_recipe, toy_texts, probability):
    """Probability one zeroes every row before each window, zero none."""
    trainer = Trainer(toy_recipe(**{**PLAIN, "reset_probability": probability}), toy_texts)
    trainer.advance()
    trainer._reset_some_states()
    assert bool((trainer.state.c == 0).all()) == (probability == 1.0)


def test_a_row_is_reset_with_all_its_copies(toy_recipe, toy_texts):
    """Hidden and cell values of all layers and all D samples of a row are zeroed together."""
    trainer = Trainer(toy_recipe(reset_probability=0.5), toy_texts)
    seen = set()
    for _ in range(12):
        trainer.state = type(trainer.state)(
            torch.ones_like(trainer.state.h), torch.ones_like(trainer.state.c)
        )
        trainer._reset_some_states()
        kept_LBH = torch.stack(trainer.state)
        kept_B = kept_LBH.amax((0, 1, 3))
        assert torch.equal(kept_LBH.amin((0, 1, 3)), kept_B)
        assert torch.equal(kept_B[0::2], kept_B[1::2])
        seen.update(kept_B.tolist())
    assert seen == {0.0, 1.0}


def test_validation_leaves_training_alone(toy_recipe, toy_texts):
    """Looking at validation texts changes no number of the run."""
    looking, blind = (Trainer(toy_recipe(), toy_texts) for _ in range(2))
    for _ in range(4):
        looking.evaluate()
        assert looking.advance() == blind.advance()


def test_nothing_changes_when_the_loss_is_not_finite(toy_recipe, toy_texts, tmp_path):
    """NaN from the first step is an error that names the run; no checkpoint is written of it."""
    recipe = toy_recipe()
    trainer = Trainer(recipe, toy_texts)
    with torch.no_grad():
        trainer.model.embedding.bias[0] = float("nan")
    before = [weight.clone() for weight in trainer.model.parameters()]
    with pytest.raises(FloatingPointError, match="step 1"):
        trainer.advance()
    for old, new in zip(before, trainer.model.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(), new.nan_to_num())
    with (
        RunDirectory.open(tmp_path / "run", replace(recipe, learning_rate=1e30)) as run,
        pytest.raises(RunError, match="training diverged"),
    ):
        train(run.recipe(), toy_texts, run, Silence())
    assert run.saved_steps() == []


def test_the_metrics_hold_the_curve(toy_recipe, toy_texts, tmp_path):
    """Loss at the end, validation at its period and at the end; the last is the returned model's."""
    model, curve = _run(tmp_path / "run", toy_recipe(), toy_texts)
    assert [record["step"] for record in curve if "valid" in record] == [20, 40]
    assert [record["step"] for record in curve if "loss" in record] == [40]
    bits = striped_loss(model, toy_texts.valid["words"][:500]) / torch.log(torch.tensor(2.0)).item()
    assert curve[-1]["valid"]["words"] == pytest.approx(bits)


def test_a_stopped_run_goes_on_exactly(toy_recipe, toy_texts, tmp_path):
    """Stopped at any step, also between log lines, the curve and the weights are those of one go."""
    recipe = toy_recipe(steps=60)
    whole, curve = _run(tmp_path / "whole", recipe, toy_texts)

    class Stop(Silence):
        def __init__(self, at):
            self.at = at

        def advanced(self, step, loss):
            if step == self.at:
                raise InterruptedError

    for at in (1, 16, 33, 34, 47, 59):
        with pytest.raises(InterruptedError):
            _run(tmp_path / "parts", recipe, toy_texts, Stop(at))
    parts, resumed = _run(tmp_path / "parts", recipe, toy_texts)
    assert resumed == curve
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name])


def test_a_finished_run_does_nothing_more(toy_recipe, toy_texts, tmp_path):
    """Running it again returns the model and leaves the metrics as they are."""
    first, curve = _run(tmp_path / "run", toy_recipe(), toy_texts)
    reporter = _Record()
    second, again = _run(tmp_path / "run", toy_recipe(), toy_texts, reporter)
    assert again == curve
    assert reporter.heard == [("started", 40, 40)]
    assert torch.equal(first.embedding.bias, second.embedding.bias)


def test_a_damaged_newest_checkpoint_costs_some_steps_only(toy_recipe, toy_texts, tmp_path):
    """The one before is used, that is said, and the curve is still that of one go."""
    _, curve = _run(tmp_path / "run", toy_recipe(), toy_texts)
    (tmp_path / "run" / "checkpoints" / "40" / "run.safetensors").write_bytes(b"lost")
    reporter = _Record()
    _, again = _run(tmp_path / "run", toy_recipe(), toy_texts, reporter)
    assert again == curve
    (_, message), started = reporter.heard
    assert "checkpoints/40: is damaged" in message
    assert message.endswith("going back to step 30")
    assert started == ("started", 30, 40)


_CHILD = """
import json, sys, torch
from pathlib import Path
from rlstm_training.config import Recipe
from rlstm_training.loop import train
from rlstm_training.reporting import Silence
from rlstm_training.run import RunDirectory
from rlstm_training.texts import prepare
from rlstm_training.trainer import Trainer
torch.set_num_threads(1)
recipe = Recipe.from_json(json.loads(sys.argv[2]))
texts, _ = prepare(recipe)
print("ready", flush=True)
with RunDirectory.open(Path(sys.argv[1]), recipe) as run:
    train(recipe, texts, run, Silence())
"""


def _kill_until_done(folder, recipe_json, kills, draw):
    """Start the run again and again, kill it at random moments, then let it end."""
    for kill in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder), recipe_json], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout.readline() == "ready\n"
            if kill < kills:
                time.sleep(draw.uniform(0.0, 0.6))
                child.send_signal(signal.SIGKILL)
            child.wait(60)
    assert child.returncode == 0


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_kills_leave_no_trace(corpora, toy_recipe, tmp_path, kills):
    """Kill -9 at random moments, then resumed: the loss curve equals the uninterrupted one exactly."""
    recipe = toy_recipe(steps=30 * kills, checkpoint_every=7)
    _kill_until_done(tmp_path / "killed", json.dumps(recipe.to_json()), kills, random.Random(kills))
    _, whole = _run(tmp_path / "whole", recipe, prepare(recipe)[0])
    assert _curve(RunDirectory(tmp_path / "killed")) == whole


@pytest.mark.gpu
def test_a_run_on_a_gpu_learns_the_same(toy_recipe, toy_texts):
    """Without dropout, whose masks differ by device, losses on CUDA are those of the CPU."""
    recipe = toy_recipe(**PLAIN)
    cpu, gpu = Trainer(recipe, toy_texts), Trainer(recipe, toy_texts, torch.device("cuda"))
    gpu.model.load_state_dict(cpu.model.state_dict())
    for _ in range(20):
        assert gpu.advance() == pytest.approx(cpu.advance(), abs=1e-3)


def test_texts_of_other_rows_are_refused(toy_recipe, toy_texts):
    """Texts and recipe must agree on the batch."""
    with pytest.raises(ValueError, match="the texts have 4 rows, the recipe 3"):
        Trainer(toy_recipe(sources=toy_recipe().sources[:1]), toy_texts)


def test_texts_may_come_from_anywhere(toy_recipe):
    """A run needs ids and rows only, no corpus."""
    ids = torch.arange(100).numpy() % 7
    trainer = Trainer(toy_recipe(), Texts(train=[(ids, 4)], valid={}))
    assert trainer.advance() > 0

"""Runs from beginning to end: stopped, killed, out of disk, gone wrong, and ended early."""

import errno
import json
import math
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from rlstm_training import run as run_module
from rlstm_training.batches import VOCABULARY, Batches
from rlstm_training.cards import export
from rlstm_training.config import Averaging, Source
from rlstm_training.corpora.texts import prepare
from rlstm_training.evaluation.evaluation import striped_loss
from rlstm_training.loop import _Loop, train
from rlstm_training.objective import language_model_loss
from rlstm_training.reporting import Reporter
from rlstm_training.run import Diverged, RunDirectory, RunError
from rlstm_training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

AVERAGED = Averaging(kind="two_tailed")


class _Record(Reporter):
    def __init__(self):
        self.heard, self.losses = [], {}

    def advanced(self, step, loss):
        self.losses[step] = loss

    def started(self, step, steps):
        self.heard.append(("started", step, steps))

    def noticed(self, message):
        self.heard.append(("noticed", message))


class _Stop(Reporter):
    """Ends the process, as it were, right after a step, or after something was noticed."""

    def __init__(self, at):
        self._at = at

    def advanced(self, step, loss):
        if step == self._at:
            raise InterruptedError

    def noticed(self, message):
        if self._at == "reset":
            raise InterruptedError


@pytest.fixture
def trained(curve_of):
    """Trains a run from where it stands: the model that it returns, and its curve."""

    def train_run(folder, recipe, texts, reporter=None):
        with RunDirectory.open(folder, recipe) as run:
            return train(recipe, texts, run, reporter or Reporter()), curve_of(run)

    return train_run


def test_the_metrics_hold_the_curve(toy_recipe, toy_texts, tmp_path, trained):
    """Loss at the end, validation at its period and at the end; the last is the returned model's."""
    model, curve = trained(tmp_path / "run", toy_recipe(), toy_texts)
    assert [record["step"] for record in curve if "valid" in record] == [20, 40]
    assert [record["step"] for record in curve if "loss" in record] == [40]
    bits = striped_loss(model, toy_texts.valid["words"][:500]) / torch.log(torch.tensor(2.0)).item()
    assert curve[-1]["valid"]["words"] == pytest.approx(bits)


@pytest.fixture
def edited(toy_recipe, own_folder):
    """A run of an own corpus at step 20 of 40, and what changes a byte of its text and prepares it again."""
    recipe = toy_recipe(sources=(Source(corpus=str(own_folder), rows=4),))

    def prepared(split=None):
        if split is not None:
            path = own_folder / f"{split}.txt"
            path.write_bytes(b"?" + path.read_bytes()[1:])
        return prepare(recipe)

    return recipe, prepared


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_run_goes_on_with_other_texts_only_where_it_is_told_to(edited, tmp_path, split):
    """It names them, and so does the card; no best of another validation text counts; no path is told."""
    recipe, prepared = edited
    texts, vocab = prepared()
    with RunDirectory.open(tmp_path / "run", recipe) as run, pytest.raises(InterruptedError):
        train(recipe, texts, run, _Stop(21))
    texts, _ = prepared(split)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        with pytest.raises(RunError, match=rf"own/as_is {split}; --accept-new-corpus"):
            train(recipe, texts, run)
        heard = _Record()
        train(recipe, texts, run, heard, new_texts=True)
        train(recipe, texts, run)  # the run knows them now
        export(run, tmp_path / "model", vocab)
        assert run.newest().header["progress"]["best_step"] == 40
    told = [each[1] for each in heard.heard if each[0] == "noticed"]
    assert told[0].startswith("from step 20 on")
    assert f"\n\nOthers from step 20 on: own/as_is {split}.\n" in (tmp_path / "model/README.md").read_text()


def test_no_vocabulary_takes_the_place_of_another(toy_recipe, toy_texts, tmp_path):
    """However it is asked for: its ids are other tokens."""
    first, second = (replace(toy_texts, digests={VOCABULARY: name}) for name in "ab")
    with RunDirectory.open(tmp_path / "run", toy_recipe()) as run:
        train(toy_recipe(), first, run)
        with pytest.raises(RunError, match=r"not what it has read: vocabulary$"):
            train(toy_recipe(), second, run, new_texts=True)


def _assert_same_weights(first, second):
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])


@pytest.mark.parametrize("kind", ["tail", "two_tailed"])
def test_a_stopped_run_goes_on_exactly(toy_recipe, toy_texts, tmp_path, trained, kind):
    """Stopped at any step, also between log lines, the curve and the weights are those of one go."""
    averaging = Averaging(kind=kind, latest=25, every=2)
    recipe = toy_recipe(steps=60, evaluate_every=10, averaging=averaging, learning_rate=0.1)
    whole, curve = trained(tmp_path / "whole", recipe, toy_texts)
    for at in (1, 16, 33, 34, 47, 59):
        with pytest.raises(InterruptedError):
            trained(tmp_path / "parts", recipe, toy_texts, _Stop(at))
    parts, resumed = trained(tmp_path / "parts", recipe, toy_texts)
    assert resumed == curve
    _assert_same_weights(whole, parts)
    ends = [RunDirectory(tmp_path / name).load(60).tensors for name in ("whole", "parts")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


_CHILD = """
import json, sys, torch
from pathlib import Path
from rlstm_training.config import Recipe
from rlstm_training.loop import train
from rlstm_training.run import RunDirectory
from rlstm_training.corpora.texts import prepare
from rlstm_training.trainer import Trainer
torch.set_num_threads(1)
recipe = Recipe.from_json(json.loads(sys.argv[2]))
texts, _ = prepare(recipe)
print("ready", flush=True)
with RunDirectory.open(Path(sys.argv[1]), recipe) as run:
    train(recipe, texts, run)
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
def test_kills_leave_no_trace(corpora, toy_recipe, tmp_path, trained, curve_of, kills):
    """Kill -9 at random moments, then resumed: the loss curve equals the uninterrupted one exactly."""
    recipe = toy_recipe(steps=30 * kills, checkpoint_every=7, averaging=AVERAGED, learning_rate=0.1)
    _kill_until_done(tmp_path / "killed", json.dumps(recipe.to_json()), kills, random.Random(kills))
    _, whole = trained(tmp_path / "whole", recipe, prepare(recipe)[0])
    assert curve_of(RunDirectory(tmp_path / "killed")) == whole


@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_loses_nothing(toy_recipe, toy_texts, tmp_path, monkeypatch, trained, half):
    """The error names the checkpoint; with room again the run goes on as if nothing had been."""
    recipe = toy_recipe(averaging=AVERAGED)
    _, curve = trained(tmp_path / "whole", recipe, toy_texts)
    saves = []

    def save_file(tensors, path):
        saves.append(path)
        if len(saves) == 2:
            if half:
                path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(tensors, path)

    whole = run_module.save_file
    monkeypatch.setattr(run_module, "save_file", save_file)
    with pytest.raises(RunError, match="checkpoints/20: cannot be written, older checkpoints stay"):
        trained(tmp_path / "run", recipe, toy_texts)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["15"]
    assert RunDirectory(tmp_path / "run").newest().damaged == ()
    assert trained(tmp_path / "run", recipe, toy_texts)[1] == curve


@pytest.fixture
def poison(monkeypatch, toy_texts):
    """Makes the loss or gradient of some windows of the text, by number from 1, no number."""

    def plant(recipe, numbers, what="loss"):
        batches = Batches(toy_texts.train, recipe.window)
        windows = [batches.next()[1] for _ in range(max(numbers))]
        bad = [windows[number - 1] for number in numbers]

        def loss(embedding, features, targets_TB, *rest):
            good = language_model_loss(embedding, features, targets_TB, *rest)
            if not any(torch.equal(targets_TB, window) for window in bad):
                return good
            nothing = (features.sum() * 0).sqrt()  # Its gradient is infinity times zero.
            return good + nothing if what == "gradient" else good * math.nan

        monkeypatch.setattr("rlstm_training.trainer.language_model_loss", loss)

    return plant


@pytest.fixture
def evaluations(monkeypatch):
    """Has evaluations report another loss: a function of step and true loss says which."""

    def plant(change):
        evaluate = Trainer.evaluate

        def changed(trainer):
            found, bits = evaluate(trainer)
            return replace(found, loss=change(trainer.step, found.loss)), bits

        monkeypatch.setattr(Trainer, "evaluate", changed)

    return plant


@pytest.fixture
def diverging(toy_recipe):
    """A recipe of 60 steps that evaluates and saves often."""
    return toy_recipe(
        steps=60,
        decay="constant",
        averaging=AVERAGED,
        evaluate_every=10,
        checkpoint_every=5,
        divergence_margin=5.0,
    )


def _loop_until(run, recipe, texts, step):
    loop = _Loop(Trainer(recipe, texts), run, [])
    loop.resume()
    while loop.trainer.step < step:
        loop.advance()
    return loop


def _assert_gone_back(loop, run, best):
    """All but text, dice and step is that of the best checkpoint; the carried state is empty."""
    saved = run.load(best)
    tensors, header = saved.tensors, saved.header
    now = loop.trainer.tensors()
    for name in (name for name in tensors if name.startswith(("model.", "optimizer.", "average."))):
        assert torch.equal(now[name], tensors[name])
    assert now["optimizer.embedding.bias.step"].item() == best
    assert loop.trainer.average.header() == header["average"]
    assert not now["state.h"].any()
    assert not now["state.c"].any()
    assert (now["positions"] != tensors["positions"]).all()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_pitfall_17_what_is_no_number_sends_the_run_back_to_its_best(
    diverging, toy_texts, tmp_path, poison, what
):
    """From the best weights, optimiser and averages it goes on, with other text, at 0.9 of the rate."""
    poison(diverging, [25], what)
    with RunDirectory.open(tmp_path / "run", diverging) as run:
        loop = _loop_until(run, diverging, toy_texts, 24)
        loop.advance()
        assert loop.trainer.step == 24
        _assert_gone_back(loop, run, best=20)
        loop.advance()
        assert loop.trainer.step == 25
        (group,) = loop.trainer.optimizer.param_groups
        assert group["lr"] == pytest.approx(0.9 * diverging.learning_rate)
        (reset,) = (record for record in run.metrics() if "reset" in record)
        assert reset["step"] == 25
        assert reset["reset"]["to_step"] == 20
        assert "step 25: loss" in reset["reset"]["why"]


@pytest.mark.parametrize("loss", [lambda _: math.nan, lambda loss: loss + 9])
def test_pitfall_17_a_bad_evaluation_sends_the_run_back_to_its_best(
    diverging, toy_texts, tmp_path, evaluations, loss
):
    """No number, or worse than the best by more than the margin."""
    evaluations(lambda step, found: loss(found) if step == 30 else found)
    with RunDirectory.open(tmp_path / "run", diverging) as run:
        loop = _loop_until(run, diverging, toy_texts, 30)
        _assert_gone_back(loop, run, best=20)
        (reset,) = (record for record in run.metrics() if "reset" in record)
        assert reset["step"] == 30
        assert reset["reset"]["to_step"] == 20
        assert "nats on validation text" in reset["reset"]["why"]


def test_rates_compound_and_are_told(diverging, toy_texts, tmp_path, poison, monkeypatch, trained):
    """0.9, then 0.81 of the recipe's rate, in the metrics and to whoever listens; the run ends well."""
    monkeypatch.setattr("rlstm_training.loop.LOG_EVERY", 5)
    poison(diverging, [25, 43])
    reporter = _Record()
    _, curve = trained(tmp_path / "run", diverging, toy_texts, reporter)
    resets = [record["reset"]["rate_scale"] for record in curve if "reset" in record]
    assert resets == pytest.approx([0.9, 0.81])
    rates = {record["step"]: record["rate"] for record in curve if "rate" in record}
    expected = {step: 0.9 ** ((step >= 25) + (step >= 42)) * diverging.learning_rate for step in rates}
    assert rates == pytest.approx(expected)
    # The steps that were undone are not in the mean.
    means = {record["step"]: record["loss"] for record in curve if "loss" in record}
    assert means[20] == pytest.approx(sum(reporter.losses[step] for step in range(16, 21)) / 5)
    assert means[25] == pytest.approx(reporter.losses[25])
    told = [message for kind, *(message, *_) in reporter.heard if kind == "noticed"]
    assert all(
        f"at {scale} of the rate" in message for scale, message in zip(("0.90", "0.81"), told, strict=True)
    )
    assert RunDirectory(tmp_path / "run").finished


def test_a_run_stopped_around_resets_goes_on_exactly(
    diverging, toy_texts, tmp_path, poison, evaluations, trained
):
    """Before, right after and long after going back, also where the checkpoint is of the step before."""
    poison(diverging, [26, 36])
    evaluations(lambda step, found: found + 9 if step == 50 else found)
    whole, curve = trained(tmp_path / "whole", diverging, toy_texts)
    assert [record["step"] for record in curve if "reset" in record] == [26, 35, 50]
    for at in (24, "reset", "reset", 27, 31, "reset", 36, 49, "reset", 53):
        with pytest.raises(InterruptedError):
            trained(tmp_path / "parts", diverging, toy_texts, _Stop(at))
    parts, resumed = trained(tmp_path / "parts", diverging, toy_texts)
    assert resumed == curve
    _assert_same_weights(whole, parts)


def test_resets_are_counted_and_come_to_an_end(diverging, toy_texts, tmp_path, poison, trained):
    """A run that goes wrong again and again is given up with an error, and again when it is resumed."""
    recipe = replace(diverging, divergence_resets=2)
    poison(recipe, range(25, 40))
    for _ in range(2):
        with pytest.raises(Diverged, match="run: training diverged again after 2 resets; step 25: loss nan"):
            trained(tmp_path / "run", recipe, toy_texts)
    run = RunDirectory(tmp_path / "run")
    assert not run.finished
    assert run.saved_steps()[-1] == 20


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_divergence_before_the_first_evaluation_is_an_error(
    diverging, toy_texts, tmp_path, poison, trained, what
):
    """There is nothing to go back to, and no checkpoint of what went wrong."""
    poison(diverging, [3], what)
    with pytest.raises(Diverged, match="before its first good evaluation; step 3: loss"):
        trained(tmp_path / "run", diverging, toy_texts)
    assert RunDirectory(tmp_path / "run").saved_steps() == []


def test_a_first_evaluation_that_is_no_number_is_an_error(
    diverging, toy_texts, tmp_path, evaluations, trained
):
    """As is a rate that blows the weights up at once."""
    recipe = replace(diverging, learning_rate=1e30)
    with pytest.raises(RunError, match="training diverged before its first good evaluation"):
        trained(tmp_path / "huge", recipe, toy_texts)
    evaluations(lambda *_: math.nan)
    with pytest.raises(Diverged, match="before its first good evaluation; step 10: nan nats"):
        trained(tmp_path / "run", diverging, toy_texts)


def test_a_run_that_gets_no_better_ends_early(diverging, toy_texts, tmp_path, evaluations, trained):
    """After so many evaluations without a better one; it is finished then, and stays so."""
    recipe = replace(diverging, early_stopping=3, steps=1000)
    evaluations(lambda step, _: abs(step - 20) / 100 + 1)
    _, curve = trained(tmp_path / "run", recipe, toy_texts)
    assert curve[-1]["step"] == 50
    assert RunDirectory(tmp_path / "run").finished
    reporter = _Record()
    assert trained(tmp_path / "run", recipe, toy_texts, reporter)[1] == curve
    assert reporter.heard == [("started", 50, 1000)]


def test_the_best_checkpoint_stays_beside_the_two_newest(
    diverging, toy_texts, tmp_path, evaluations, trained
):
    """And is still the best of a run that goes on from the older of the two."""
    evaluations(lambda step, _: abs(step - 20) / 100 + 1)
    _, curve = trained(tmp_path / "run", diverging, toy_texts)
    run = RunDirectory(tmp_path / "run")
    assert run.saved_steps() == [20, 55, 60]
    assert run.best().step == 20
    (run.folder / "checkpoints" / "60" / "run.safetensors").write_bytes(b"lost")
    reporter = _Record()
    assert trained(run.folder, diverging, toy_texts, reporter)[1] == curve
    assert ("started", 55, 60) in reporter.heard
    (_, said), *_ = reporter.heard
    assert "checkpoints/60: is damaged" in said
    assert said.endswith("going back to step 55")
    assert run.saved_steps() == [20, 55, 60]
    assert run.best().step == 20

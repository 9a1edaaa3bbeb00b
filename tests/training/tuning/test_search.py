import json
import math
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext

import pytest

from rlstm_training.corpora.texts import prepare
from rlstm_training.reporting import Silence
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.trainer import Trainer
from rlstm_training.tuning.search import for_search, run_search
from rlstm_training.tuning.space import Search
from rlstm_training.tuning.study import Study, StudyError


def _silent(draw):
    return nullcontext(Silence())


@pytest.fixture
def opened(tmp_path, toy_recipe):
    """Opens a study of toy recipes, evaluated at every second of eight steps."""
    with ExitStack() as stack:

        def open_study(name="study", **changes):
            settings = {"steps": 8, "evaluate_every": 2, "checkpoint_every": 3, **changes}
            search = Search(recipe=toy_recipe(**settings), ranges="enwik8", budget=9_000, strategy="random")
            return stack.enter_context(Study.open(tmp_path / f"{name}.db", search))

        yield open_study


def _curve(study, number):
    run = RunDirectory(study.folder / "runs" / f"{number:04d}")
    return [(record["step"], record["nats"]) for record in run.metrics() if "valid" in record]


def _results(study):
    return sorted((result.number, result.outcome, result.nats, result.step) for result in study.results())


def test_every_draw_is_trained_and_told(opened, toy_texts):
    """A draw's result is the best of its validation curve."""
    study = opened()
    run_search(study, toy_texts, _silent, draws=3)
    for number, outcome, nats, step in _results(study):
        curve = _curve(study, number)
        assert [at for at, _ in curve] == [2, 4, 6, 8]
        assert (outcome, step) == ("done", 8)
        assert nats == min(losses["reported"] for _, losses in curve)
    assert len(study.results()) == 3


def test_a_draw_that_is_behind_is_cut_off(opened, toy_texts):
    """After the first quarter and below the median of others; not with pruning off."""
    for prune, outcome, step in ((True, "pruned", 2), (False, "done", 8)):
        study = opened(f"study-{prune}")
        for _ in range(5):
            draw = study.take(5)
            for at in (2, 4, 6, 8):
                draw.trial.report(0.1, at)
            study.end(draw, "done", 0.1)
            draw.run.close()
        run_search(study, toy_texts, _silent, draws=6, prune=prune)
        assert [result[1:] for result in _results(study) if result[0] == 5] == [
            (outcome, pytest.approx(math.log(256), rel=0.2), step)
        ]


def test_a_divergence_ends_its_draw_only(opened, toy_texts, monkeypatch):
    """Nothing finite from the first step on: the search goes on, and the study knows."""
    study = opened()

    def diverge(trainer, rate_scale):
        raise FloatingPointError("step 1: loss nan")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", diverge)
        run_search(study, toy_texts, _silent, draws=2)
    run_search(study, toy_texts, _silent, draws=3)
    assert [outcome for _, outcome, _, _ in _results(study)] == ["diverged", "diverged", "done"]


def test_a_failed_run_keeps_its_draw(opened, toy_texts, monkeypatch):
    """A full disk ends the search with its error; afterwards the draw is taken up again."""
    study = opened()

    def full(*args, **kwargs):
        raise RunError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", full)
        with pytest.raises(RunError, match="disk full"):
            run_search(study, toy_texts, _silent, draws=1)
    run_search(study, toy_texts, _silent, draws=1)
    assert [result[:2] for result in _results(study)] == [(0, "done")]


def test_a_search_needs_validation_text(opened, toy_texts):
    """There is nothing to compare draws by."""
    texts = type(toy_texts)(train=toy_texts.train, valid={})
    with pytest.raises(StudyError, match="needs validation text"):
        run_search(opened(), texts, _silent, draws=1)


def test_a_short_search_is_evaluated_often(toy_recipe):
    """Ten times at least, where there are as many steps; a recipe that does so anyway stays as it is."""
    assert for_search(toy_recipe(evaluate_every=1000), 500).evaluate_every == 50
    assert for_search(toy_recipe(evaluate_every=1000), 3).evaluate_every == 1
    assert for_search(toy_recipe(evaluate_every=3, steps=100), None) == toy_recipe(
        evaluate_every=3, steps=100
    )


_CHILD = """
import json, sys
from contextlib import nullcontext
from pathlib import Path
from rlstm_training.config import Recipe
from rlstm_training.reporting import Silence
from rlstm_training.tuning.space import Search
from rlstm_training.tuning.study import Study
from rlstm_training.corpora.texts import prepare
from rlstm_training.trainer import Trainer
from rlstm_training.tuning.search import run_search

recipe = Recipe.from_json(json.loads(sys.argv[2]))
texts, _ = prepare(recipe)
search = Search(recipe=recipe, ranges="enwik8", budget=9_000, strategy="random")
print("ready", flush=True)
study = Study.open(Path(sys.argv[1]), search)
run_search(study, texts, lambda draw: nullcontext(Silence()), draws=3, prune=False)
"""


def _start(study):
    recipe = json.dumps(study.search.recipe.to_json())
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(study.file), recipe], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_kills_leave_no_trace(corpora, opened, kills):
    """Kill -9 at random moments, then resumed: draws and curves equal those of an undisturbed search."""
    steps = {"steps": 20 * kills, "evaluate_every": 5}
    plain, killed = opened("plain", **steps), opened("killed", **steps)
    run_search(plain, prepare(plain.search.recipe)[0], _silent, draws=3, prune=False)
    draw = random.Random(kills)
    for kill in range(kills + 1):
        with _start(killed) as child:
            assert child.stdout.readline() == "ready\n"
            if kill < kills:
                time.sleep(draw.uniform(0.2, 1.0))
                child.send_signal(signal.SIGKILL)
            child.wait(300)
    assert child.returncode == 0
    assert _results(killed) == _results(plain)
    assert [_curve(killed, n) for n in range(3)] == [_curve(plain, n) for n in range(3)]


@pytest.mark.timeout(300)
def test_two_processes_share_a_search(corpora, opened):
    """Every draw is trained once, by one of them."""
    plain, shared = opened("plain"), opened("shared")
    run_search(plain, prepare(plain.search.recipe)[0], _silent, draws=3, prune=False)
    with _start(shared) as first, _start(shared) as second:
        assert [first.wait(200), second.wait(200)] == [0, 0]
    assert _results(shared) == _results(plain)

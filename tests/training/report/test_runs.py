import json

import pytest

from rlstm_training.report.runs import read_runs
from rlstm_training.run import RunDirectory


def _told(path):
    runs, problems = read_runs([path])
    return {run.label: run.status for run in runs}, {
        problem.folder.name: problem.what for problem in problems
    }


def test_every_status_is_told(make_run, tmp_path, toy_recipe):
    """Finished, also before its steps are all done; running; interrupted; not begun."""
    make_run("stopped early", finished=True)
    make_run("whole", losses=(4, 3, 2, 1))
    make_run("interrupted")
    make_run("new", losses=())
    going = make_run("running")
    with RunDirectory.open(going, RunDirectory(going).recipe()):
        statuses, problems = _told(tmp_path)
    assert statuses == {
        "stopped early": "finished",
        "whole": "finished",
        "interrupted": "interrupted",
        "new": "not begun",
        "running": "running",
    }
    assert problems == {}


def test_runs_are_found_at_any_depth(make_run, tmp_path):
    """Their labels are their paths from where they part; none is told twice, none is sought within a run."""
    inner = make_run("a/deep/run")
    outer = make_run("b")
    (outer / "copy").mkdir()
    (outer / "copy" / "recipe.json").write_text("{}")
    runs, problems = read_runs([tmp_path, inner, outer])
    assert [run.label for run in runs] == ["a/deep/run", "b"]
    assert problems == []
    assert [run.label for run in read_runs([inner])[0]] == ["run"]


def test_what_is_damaged_is_named_and_the_rest_is_read(make_run, tmp_path):
    """A report goes on past anything."""
    make_run("good")
    for name, recipe in (
        ("cut", '{"format'),
        ("list", "[]"),
        ("newer", '{"format_version": 99}'),
        ("gone", None),
    ):
        path = make_run(name) / "recipe.json"
        path.unlink() if recipe is None else path.write_text(recipe)
    with (make_run("lines") / "metrics.jsonl").open("a") as metrics:
        metrics.write("nonsense\n" + json.dumps({"step": 30, "valid": {"text": 2.0}}) + "\n")
    (tmp_path / "unmetric" / "metrics.jsonl").mkdir(parents=True)
    statuses, problems = _told(tmp_path)
    assert set(statuses) == {"good", "lines"}
    assert "is damaged" in problems["cut"]
    assert problems["list"] == "recipe.json: is no recipe"
    assert "format_version must be" in problems["newer"]
    assert problems["gone"] == "recipe.json: No such file or directory"
    assert problems["lines"] == "metrics.jsonl: cannot read line 5; shown without"
    (lines,) = [run for run in read_runs([tmp_path])[0] if run.label == "lines"]
    assert [point.step for point in lines.curves.validations] == [10, 20, 30]


def test_a_folder_without_runs_is_told(tmp_path):
    """It may have been meant to hold some."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert _told(tmp_path / "empty") == ({}, {"empty": "holds no run"})
    assert _told(tmp_path / "file") == ({}, {"file": "is not a folder"})


@pytest.mark.parametrize("lost", [["averaging", "loss_scale", "early_stopping"], ["batching"]])
def test_an_older_format_is_read(make_run, lost):
    """What its recipes had no word for is as it was then."""
    folder = make_run()
    path = folder / "recipe.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in data.items() if k not in lost} | {"format_version": 1}))
    ((run,), problems) = read_runs([folder])
    assert (run.outdated, problems) == (True, [])
    assert run.recipe.averaging.kind == "none"

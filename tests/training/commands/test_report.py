import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.commands.report import report
from rlstm_training.run import RunDirectory


@pytest.fixture
def rlstm_report():
    """Types `rlstm report` and what follows."""
    app = typer.Typer()
    app.command()(report)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def run(tmp_path, toy_recipe):
    with RunDirectory.open(tmp_path / "runs" / "one", toy_recipe()) as run:
        run.log({"step": 20, "valid": {"text": 3.0}})
        run.log({"step": 40, "valid": {"text": float("nan")}})
    return run


def test_a_page_is_written(rlstm_report, run, tmp_path, monkeypatch):
    """Where asked, else as report.html where one stands."""
    monkeypatch.chdir(tmp_path)
    for words, path in (([], "report.html"), (["--out", "new/page.md"], "new/page.md")):
        done = rlstm_report("runs", *words)
        assert (done.exit_code, done.stdout) == (0, f"report: {path}\n")
        assert "3.0000 bits per byte" in (tmp_path / path).read_text()


def test_json_holds_the_tables(rlstm_report, run, tmp_path, monkeypatch):
    """Strict JSON on standard output, and no page unless asked for one."""
    monkeypatch.chdir(tmp_path)
    done = rlstm_report("runs", "--json")
    told = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    (row,) = told["runs"]
    assert (row["run"], row["best"], row["best_step"], row["steps"]) == ("one", pytest.approx(3.0), 20, 40)
    assert told["groups"][0]["runs"] == ["one"]
    assert (told["differences"], told["problems"]) == ({}, [])
    assert not (tmp_path / "report.html").exists()


def test_problems_are_said_and_the_rest_is_done(rlstm_report, run, tmp_path):
    """On standard error, in the page and in the JSON."""
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "recipe.json").write_text("{")
    done = rlstm_report(tmp_path / "runs", "--out", tmp_path / "a.html", "--json")
    assert done.exit_code == 0
    assert done.stderr.startswith(f"rlstm: {broken}: recipe.json: is damaged")
    assert json.loads(done.stdout)["problems"][0]["folder"] == str(broken)
    assert "is damaged" in (tmp_path / "a.html").read_text()


def test_what_cannot_be_reported_on_is_an_error(rlstm_report, run, tmp_path):
    """Wrong usage is 2, work that failed 1; each in words."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for words, code, message in [
        ([tmp_path / "absent"], 2, "there is no such folder"),
        ([run.folder, "--out", tmp_path / "a.pdf"], 2, "must end in .html or .md"),
        ([tmp_path / "empty"], 1, "no run could be read"),
        ([run.folder, "--out", tmp_path / "file" / "a.html"], 1, "cannot be written"),
    ]:
        done = rlstm_report(*words)
        assert done.exit_code == code, words
        assert message in " ".join(done.stderr.replace("│", " ").split())

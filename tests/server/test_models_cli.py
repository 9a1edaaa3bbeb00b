"""`rlstm models`: what is here, whole or not."""

import json
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rlstm_model import checkpoint as checkpoints
from rlstm_server import models_cli


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Type the command in an empty folder, where nothing is shipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLSTM_MODEL", raising=False)
    monkeypatch.setattr(models_cli, "shipped_names", list)
    return lambda *words: CliRunner().invoke(models_cli.models, [str(word) for word in words])


def listed(done):
    """What was listed, by name."""
    assert done.exit_code == 0, done.output
    return {each["name"]: each for each in json.loads(done.stdout)["models"]}


def test_a_local_model_is_described(models, tiny_checkpoint, tmp_path):
    """Everything that one has to know to serve it; found in runs, two folders down."""
    shutil.copytree(tiny_checkpoint, tmp_path / "runs" / "mine" / "tiny")
    known = checkpoints.load(tiny_checkpoint)

    assert listed(models("--json"))["tiny"] == {
        "name": "tiny",
        "path": "runs/mine/tiny",
        "shipped": False,
        "bytes": sum(path.stat().st_size for path in tiny_checkpoint.iterdir()),
        "vocabulary": "bytes",
        "parameters": known.parameters.config.num_parameters,
        "fingerprint": known.fingerprint,
        "rules": [f"full:{known.parameters.config.num_parameters}", "output_bias:256"],
        "fault": None,
    }


def test_it_needs_nothing_of_a_server():
    """Models are listed where only training is installed."""
    others = ["fastapi", "pydantic", "pydantic_settings", "redis", "uvicorn"]
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); import rlstm_server.models_cli"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_broken_ones_are_named_beside_the_others(models, tiny_checkpoint, tmp_path):
    """Weights cut short, a calibration of nothing, no vocabulary: each with its file; the rest is listed."""
    for name, file in [
        ("cut", checkpoints.WEIGHTS),
        ("vague", checkpoints.ADAPTATION),
        ("mute", "vocab.json"),
    ]:
        shutil.copytree(tiny_checkpoint, tmp_path / "mine" / name)
        (tmp_path / "mine" / name / file).write_bytes(b"{}")
    shutil.copytree(tiny_checkpoint, tmp_path / "mine" / "whole")

    found = listed(models("mine", "--json"))
    assert list(found) == ["cut", "mute", "vague", "whole"]
    assert checkpoints.WEIGHTS in found["cut"]["fault"]
    assert checkpoints.ADAPTATION in found["vague"]["fault"]
    assert "vocab.json" in found["mute"]["fault"]
    assert found["whole"]["fault"] is None

    shown = models("mine")
    assert shown.exit_code == 0
    assert shown.stdout.count("broken: ") == 3


def test_the_folder_that_is_served_is_searched(models, tiny_checkpoint, monkeypatch):
    """RLSTM_MODEL names it; the same folder twice is listed once."""
    monkeypatch.setenv("RLSTM_MODEL", str(tiny_checkpoint))
    assert list(listed(models("--json"))) == ["tiny"]
    assert list(listed(models(tiny_checkpoint, tiny_checkpoint.parent, "--json"))) == ["tiny"]


def test_shipped_ones_come_first(models, monkeypatch, tiny_checkpoint):
    """They have no place that one needs to know."""
    monkeypatch.setattr(models_cli, "shipped_names", lambda: ["bytes-small"])
    told = models(tiny_checkpoint, "--json")

    assert list(listed(told)) == ["bytes-small", "tiny"]
    assert listed(told)["bytes-small"]["shipped"]


def test_a_folder_that_is_not_there(models):
    """Wrong usage, and it is named."""
    done = models("/no/such/folder")
    assert done.exit_code == 2
    assert "/no/such/folder" in done.stderr

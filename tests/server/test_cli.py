import os
import socket

import pytest
import typer
from typer.testing import CliRunner

from rlstm_server.cli import serve


@pytest.fixture
def refusal(tiny_checkpoint, monkeypatch, restored_logs, tmp_path):
    """Run `serve`, which must refuse, and give its one sentence."""
    for name in [name for name in os.environ if name.startswith("RLSTM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLSTM_DATA_DIR", str(tmp_path / "data"))
    app = typer.Typer()
    app.command()(serve)

    def run(*arguments, model=tiny_checkpoint, **variables):
        result = CliRunner().invoke(app, [str(model), "--port", "0", *arguments], env=variables)
        assert result.exit_code == 1, (result.output, result.exception)
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("rlstm serve: ")
        return result.stderr

    return run


def test_a_port_in_use_is_named(refusal):
    """Before the model is loaded, with what to do about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = refusal("--port", str(port), model="/not/even/looked/at")
    assert f"port {port} on 127.0.0.1 is in use" in sentence
    assert "--port" in sentence


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--device", "tpu"], {}, "RLSTM_DEVICE"),
        (["--api-keys-file", "/nowhere.json"], {}, "/nowhere.json"),
        (["--redis-url", "redis://127.0.0.1:1"], {}, "store"),
        (["--host", "no.such.host.invalid"], {"RLSTM_API_KEYS": "the-right-key"}, "RLSTM_HOST"),
        ([], {"RLSTM_DATA_DIR": "/dev/null/here"}, "/dev/null/here"),
        ([], {"WEB_CONCURRENCY": "4"}, "RLSTM_WORKERS"),
        ([], {"RLSTM_LIMITS__CONNECTIONS": "1048576"}, "RLSTM_LIMITS__CONNECTIONS"),
        (["--audit-file", "/nowhere/at/all"], {}, "RLSTM_AUDIT_FILE"),
    ],
)
def test_what_cannot_be_served_is_named(refusal, arguments, variables, named):
    """Setting, file or address, in one line on standard error."""
    assert named in refusal(*arguments, **variables)


def test_a_missing_model_is_named(refusal):
    """With the place that was looked at."""
    assert "/nowhere/at/all" in refusal(model="/nowhere/at/all")

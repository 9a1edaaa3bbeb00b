"""`rlstm score` against the fake server."""

import json
from typing import Any

import pytest

from rlstm_client.cli import commands
from rlstm_client.cli.main import main


@pytest.fixture
def rlstm(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line against the fake server: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setenv("RLSTM_URL", address)
        monkeypatch.setattr("sys.argv", ["rlstm", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_bits_per_byte(rlstm: Any) -> None:
    """Without options: the sums, in bits."""
    code, out, _ = rlstm("score", "abc")

    assert code == 0
    assert "bits per byte" in out
    assert "1.4427" in out


def test_json(rlstm: Any, server: Any) -> None:
    """With ``--json``: the server's answer, with what was asked for."""
    code, out, _ = rlstm("score", "abc", "--json", "--tokens", "--unit", "nats", "--context", "x", "--adapt")

    assert code == 0
    assert json.loads(out)["items"][0]["ids"] == [97, 98, 99]
    assert json.loads(server.requests[0].content) == {
        "text": "abc",
        "context": "x",
        "unit": "nats",
        "scores": "tokens",
        "adapt": True,
    }


def test_options_of_learning(rlstm: Any, server: Any) -> None:
    """They make the adaptation object, which implies that the model adapts."""
    code, _, _ = rlstm("score", "abc", "--kind", "subspace", "--fast-weights", "1234", "--experts", "4")

    assert code == 0
    asked = {"kind": "subspace", "num_fast_weights": 1234, "experts": 4}
    assert json.loads(server.requests[0].content)["adaptation"] == asked
    assert rlstm("score", "abc", "--kind", "no-kind")[0] == 2


def test_a_refusal(rlstm: Any, server: Any) -> None:
    """The server's sentence is the message, and the exit code says that it was the server's."""
    server.refuse(413, "too_large")

    assert rlstm("score", "abc") == (
        1,
        "",
        "rlstm: refused: too_large (413, request {})\n".format(server.requests[0].headers["x-request-id"]),
    )


def test_the_key_from_the_environment(rlstm: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key needs not stand on the command line."""
    monkeypatch.setenv("RLSTM_API_KEY", "secret-key")
    rlstm("score", "a")

    assert server.requests[0].headers["authorization"] == "Bearer secret-key"


def test_generate(rlstm: Any, server: Any) -> None:
    """The text as it comes, or the whole answer as JSON."""
    assert rlstm("generate", "a", "--seed", "4")[:2] == (0, "héllo\n")
    assert json.loads(rlstm("generate", "a", "--json")[1])["text"] == "héllo"
    assert json.loads(server.requests[0].content) == {"prompt": "a", "seed": 4, "stream": True}


def test_without_a_server(rlstm: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--local`` gives a model the body that a server would get, and reads the same answer."""
    asked = []

    def act(model: str, body: Any) -> Any:
        asked.append((model, body))
        return {
            "text": "t",
            "items": [{"totals": {"logprob": -1, "tokens": 1, "bytes": 1, "bits_per_byte": 8.0}}],
        }

    monkeypatch.setattr(commands, "load", lambda group, name, extra: act)

    assert "8.0000" in rlstm("score", "a", "--local", "tiny")[1]
    assert rlstm("generate", "a", "--local", "tiny")[1] == "t\n"
    assert asked[0] == ("tiny", {"text": "a", "unit": "bits", "scores": "totals"})
    assert asked[1] == ("tiny", {"prompt": "a"})
    assert server.requests == []


def test_a_local_model_that_fails(rlstm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a local model says is the one line, and the exit code is that of a refusal."""

    def act(model: str, body: Any) -> Any:
        raise ValueError(f"{model}: no such checkpoint")

    monkeypatch.setattr(commands, "load", lambda group, name, extra: act)

    assert rlstm("score", "a", "--local", "tiny") == (1, "", "rlstm: tiny: no such checkpoint\n")

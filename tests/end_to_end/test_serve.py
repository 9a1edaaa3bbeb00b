"""The life of a server process: how it starts, what it refuses, and how it ends."""

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest


def store_pid(data_dir):
    """The process of the embedded store, while it runs."""
    pid = json.loads((data_dir / "store.json").read_text())["pid"]
    return pid if Path(f"/proc/{pid}/exe").exists() else None


def test_a_session_outlives_its_server(start, tmp_path):
    """After kill -9 it is where it was last acknowledged, restored too; its file outlives its deletion."""
    probe, text = {"candidates": [{"text": "the best of"}]}, "It was the best of times. "

    def probed(client, session):
        return client.post(f"/sessions/{session}/score", json=probe).json()

    with start(data_dir=tmp_path) as server, server.client() as client:
        assert f"(store: embedded in {tmp_path}" in server.greeting
        assert client.get("/info").json()["store"] == "embedded"  # where it is, is nobody's business
        session = client.post("/sessions", json={"text": text * 4}).json()["id"]
        client.post(f"/sessions/{session}/snapshots", json={"name": "here"})
        before = probed(client, session)
        client.post(f"/sessions/{session}/append", json={"text": "Another text altogether; " * 40})
        assert probed(client, session)["candidates"] != before["candidates"]
        restored = client.post(f"/sessions/{session}/restore", json={"snapshot": "here"}).json()
        exported = client.get(f"/sessions/{session}/export").content
        server.end(signal.SIGKILL)
    with start(data_dir=tmp_path) as server, server.client() as client:
        after = probed(client, session)
        assert after["candidates"] == before["candidates"]
        assert after["version"] == restored["version"]
        more = client.post(f"/sessions/{session}/append", json={"text": "worst"}).json()
        assert (more["version"], more["durability"]) == (restored["version"] + 1, "fsync")
        assert client.delete(f"/sessions/{session}").status_code == 204
        octets = {"content-type": "application/octet-stream"}
        made = client.post("/sessions/import", content=exported, headers=octets)
        assert made.status_code == 201, made.text
        assert probed(client, made.json()["id"])["candidates"] == before["candidates"]


def test_a_session_goes_on_where_other_bits_are_computed(start, tmp_path):
    """A build without fused multiply-adds has another identity: it takes up a state, and scores alike."""
    first, rest = "It was the best of times. " * 8, "It was the worst of times. " * 8

    def append(client, session, text):
        answer = client.post(f"/sessions/{session}/append", json={"text": text, "scores": "tokens"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    with start(data_dir=tmp_path) as server, server.client() as client:
        here = client.get("/info").json()["numerics"]
        stays, goes = (client.post("/sessions", json={"text": first}).json()["id"] for _ in range(2))
        stayed = append(client, stays, rest)
        assert server.end()[0] == 0
    with start(data_dir=tmp_path, RLSTM_INSTRUCTIONS="portable") as server, server.client() as client:
        there = client.get("/info").json()["numerics"]
        went = append(client, goes, rest)
        assert server.end()[0] == 0
    if here == there:
        pytest.skip("this machine has the portable instructions alone")
    assert (went["version"], went["position"]) == (stayed["version"], stayed["position"])
    one, other = (answer["logprobs"] for answer in (stayed, went))
    assert one != other
    assert other == pytest.approx(one, abs=1e-4)
    with start(data_dir=tmp_path) as server, server.client() as client:
        assert append(client, goes, first)["version"] == went["version"] + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(start, tmp_path, number):
    """Exit code 0, within seconds when idle, no process and no socket left behind."""
    with start(data_dir=tmp_path) as server:
        with server.client() as client:
            client.post("/sessions", json={"text": "a"})
        assert store_pid(tmp_path)
        code, seconds = server.end(number)
        assert code == 0, server.errors()
        assert seconds < 6
        assert store_pid(tmp_path) is None
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=1)


def test_several_models_are_served_by_name(start, rlstm):
    """As they were given on the command line; the commands ask for one by its name."""

    def asked(*words):
        done = subprocess.run(
            [str(rlstm.path), *words, "--url", server.url, "--json"],
            env=rlstm.environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    with start("also=bytes-small", "--durability", "memory") as server:
        assert server.greeting.startswith("rlstm serving tiny, also on "), server.errors()
        models = [asked("score", "a text", *choice)[1]["model"] for choice in ((), ("--model", "also"))]
        made = asked("session", "create", "--model", "also")[1]
        code, sentence = asked("generate", "a text", "--model", "neither")

    assert models == ["tiny", "also"]
    assert (made["model"], made["adaptation"]["kind"]) == ("also", "subspace")
    assert code == 1
    assert "these are: tiny, also" in sentence

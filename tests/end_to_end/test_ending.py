"""How a server ends while work is under way: with a word for everybody, and at once when told twice."""

import signal
import threading
import time

import httpx
import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

IDLE_SECONDS = 2.0
DRAIN_SECONDS = 10.0


def reading(server, received):
    """Read an endless text in a thread, once its first piece is there."""

    def read():
        body = {"max_tokens": 65_536, "stream": True}
        try:
            with server.client() as client, client.stream("POST", "/generate", json=body) as answer:
                received.extend(answer.iter_text())
        except httpx.HTTPError as error:
            received.append(type(error).__name__)

    thread = threading.Thread(target=read)
    thread.start()
    while not received:
        time.sleep(0.02)
    return thread


def test_a_second_signal_is_obeyed_at_once(start, tmp_path):
    """However long the open work may take by the settings; the store is still ended in order."""
    received = []
    with start(data_dir=tmp_path, RLSTM_LIMITS__DRAIN_SECONDS="60") as server:
        reader = reading(server, received)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        code, seconds = server.end()
        reader.join(10)
    print(f"\nexit after a second signal: {seconds:.2f} s")
    assert code == 0
    assert seconds < IDLE_SECONDS


def test_while_it_drains_nothing_new_is_taken_and_ready_says_no(start, tmp_path):
    """From the first moment on; what was under way ends with a word."""
    received, answers = [], []
    with start(data_dir=tmp_path, RLSTM_LIMITS__DRAIN_SECONDS="2") as server, server.client() as client:
        assert client.get("/health/ready").status_code == 200
        reader = reading(server, received)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        began = time.monotonic()
        while server.process.poll() is None:
            for path in ("/health/ready", "/sessions"):
                try:
                    with server.client() as stranger:
                        answers.append(
                            stranger.request("GET" if "ready" in path else "POST", path).status_code
                        )
                except httpx.TransportError:
                    answers.append("refused")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        reader.join(10)
        assert server.process.wait() == 0
    print(
        f"\ndrain with an open stream: {seconds:.2f} s; strangers meanwhile: {sorted(set(map(str, answers)))}"
    )
    assert set(answers) <= {503, "refused"}
    assert seconds < DRAIN_SECONDS
    assert "urn:rlstm:problem:draining" in "".join(received)


def test_an_append_under_way_is_committed_or_says_that_it_was_not(start, tmp_path):
    """C6: the session is afterwards at exactly the version that the answer, or its problem, tells."""
    told = []
    with start(data_dir=tmp_path, RLSTM_LIMITS__DRAIN_SECONDS="2") as server, server.client() as client:
        session = client.post("/sessions", json={}).json()["id"]
        text = "the quick brown fox jumps over the lazy dog " * 1_400

        def append():
            with server.client() as other:
                answer = other.post(f"/sessions/{session}/append", json={"text": text, "scores": "none"})
                told.append((answer.status_code, answer.json()))

        appender = threading.Thread(target=append)
        appender.start()
        time.sleep(0.5)
        code, seconds = server.end()
        appender.join(10)
    assert code == 0
    assert seconds < DRAIN_SECONDS
    ((status, answer),) = told
    with start(data_dir=tmp_path) as server, server.client() as client:
        version = client.get(f"/sessions/{session}").json()["version"]
    print(f"\nappend under way: {status}, applied {answer.get('applied', 'yes')}, exit in {seconds:.2f} s")
    assert (status, version) in {(200, 1), (503, 0)}
    assert status == 200 or answer["applied"] == "no"

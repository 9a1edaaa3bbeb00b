"""How a server ends while work is under way: with a word for everybody, and at once when told twice."""

import signal
import threading
import time

import httpx
import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

IDLE_SECONDS = 2.0


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


def serves(server):
    """Whether it takes work: it does not while it drains."""
    try:
        with server.client() as client:
            return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_a_second_signal_is_obeyed_at_once(start, tmp_path):
    """However long the open work may take by the settings; the store is still ended in order."""
    received = []
    with start(data_dir=tmp_path, RLSTM_LIMITS__DRAIN_SECONDS="60") as server:
        reader = reading(server, received)
        server.process.send_signal(signal.SIGTERM)
        while serves(server):
            time.sleep(0.02)
        assert server.process.poll() is None
        code, seconds = server.end()
        reader.join(10)
    print(f"\nexit after a second signal: {seconds:.2f} s")
    assert code == 0
    assert seconds < IDLE_SECONDS

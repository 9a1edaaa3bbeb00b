"""A server in a process of its own."""

import httpx
import pytest

from benchmarks.serving.load import Rounds
from benchmarks.serving.process import NoServer, rounds_of, running
from rlstm_server.metrics import Metrics


def test_it_listens_and_ends(tiny_checkpoint, monkeypatch):
    """Two tenants have keys, of which the first may read metrics; this process's settings are not its own."""
    monkeypatch.setenv("RLSTM_MODEL", "/no/such/model")
    with running({"model": tiny_checkpoint, "durability": "memory", "threads": 1}) as server:
        answers = [
            httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {key}"})
            for key in server.keys
        ]
        assert [answer.status_code for answer in answers] == [200, 403]
        assert rounds_of(answers[0].text) == Rounds(0, 0.0, 0.0)
        assert server.resident_bytes() > 2**20
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    with pytest.raises(NoServer, match="memory"):
        server.resident_bytes()


def test_a_server_that_does_not_start_says_why():
    """What it wrote is in the error."""
    with pytest.raises(NoServer, match="no such checkpoint"), running({"model": "/no/such/model"}):
        pass


def test_rounds_are_read_from_metrics():
    """Count, rows of all phases together, and seconds."""
    metrics = Metrics()
    metrics.batch_finished(0.4, {"score": 3, "update": 4}, {"score": 9, "update": 9})
    metrics.batch_finished(0.1, {"generate": 2}, {"generate": 2})
    metrics.batch_step_finished(0.5)
    metrics.batch_step_finished(0.25)
    assert rounds_of(metrics.exposition()[0].decode()) == Rounds(2, 9.0, 0.75)

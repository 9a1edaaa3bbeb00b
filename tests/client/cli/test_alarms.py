"""Where alarms go: one alert for like ones, which waits while nobody takes it; and metrics."""

import json
import socket
import urllib.request
from collections import Counter
from typing import Any

import httpx
import pytest

from rlstm_client import AsyncClient, Retries
from rlstm_client.cli.alarms import Alertmanager, metrics

TOLD: dict[str, Any] = {
    "log": "app.log",
    "number": 7,
    "reason": "word",
    "bytes": 9,
    "text": "GET é PUT",
    "labels": {"unit": "a.service"},
    "template": "abc+/1",
    "count": 1,
    "spans": [{"start": 4, "end": 5}],
}


@pytest.mark.parametrize(
    ("status", "left", "said"), [(200, 0, ""), (503, 2, "2 alarms wait"), (400, 0, "are lost")]
)
async def test_like_alarms_are_one_alert(
    capsys: pytest.CaptureFixture[str], status: int, left: int, said: str
) -> None:
    """By log, template and reason, the newest with its count; what is not taken comes with the next one."""
    sent: list[list[dict[str, Any]]] = []
    answers = [503, status, 200]

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(answers[min(len(sent) - 1, 2)])

    client = AsyncClient(
        "http://am/prefix", transport=httpx.MockTransport(answer), retries=Retries(attempts=1)
    )
    manager = Alertmanager(client)
    await manager.tell(TOLD)
    await manager.tell(TOLD | {"count": 2, "number": 9})
    await manager.tell(TOLD | {"reason": "score", "score": 0.9})

    assert [len(alerts) for alerts in sent] == [1, 1, 1 + left // 2]
    alert = sent[1][0]
    assert alert["labels"] == {
        "alertname": "StrangeLine",
        "severity": "warning",
        "unit": "a.service",
        "log": "app.log",
        "reason": "word",
        "template": "abc+/1",
    }
    assert (alert["annotations"]["words"], alert["annotations"]["count"]) == ("é", "2")
    assert all(isinstance(value, str) for value in alert["annotations"].values())
    assert said.removeprefix("2 ") in capsys.readouterr().err


def test_metrics_say_what_was_counted() -> None:
    """Of each log, its alarms by reason, those too that there were none of."""
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        metrics(("127.0.0.1", port), lambda: [("app.log", 3, Counter(word=2))], ("word", "score")),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = answer.read().decode()
    assert 'rlstm_watch_lines_total{log="app.log"} 3.0' in text
    assert 'rlstm_watch_alarms_total{log="app.log",reason="word"} 2.0' in text
    assert 'rlstm_watch_alarms_total{log="app.log",reason="score"} 0.0' in text

"""Where alarms go beside standard output: to Alertmanager, and into metrics that Prometheus reads."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from rlstm_client import AsyncClient, Retries
from rlstm_client._calls import Call
from rlstm_client.cli.feeds import binding, missing
from rlstm_client.errors import RLSTMError

MOST_WAITING: Final = 1_000
AGAIN_SECONDS: Final = 30.0


class Alertmanager:
    """Sends alarms to Alertmanager's API; those of one log, template and reason are one alert there.

    What it does not take now waits, and is sent again with the next one, or in half a minute.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client, self._turn = client, asyncio.Lock()
        self._waiting: dict[tuple[str, ...], Mapping[str, Any]] = {}

    async def tell(self, told: Mapping[str, Any]) -> None:
        """Send an alarm, with those that wait."""
        alert = _alert(told)
        self._waiting[tuple(alert["labels"].values())] = alert
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        await self.send()

    async def send(self) -> None:
        """Send what waits; what is refused for good is dropped, and said."""
        async with self._turn:
            sent = dict(self._waiting)
            if not sent:
                return
            body = json.dumps([*sent.values()]).encode()
            call = Call(method="POST", path="/api/v2/alerts", read=lambda _: None, content=body)
            try:
                await self._client._send(call)
            except RLSTMError as error:
                refused = error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
                left = "are lost" if refused else "wait"
                sys.stderr.write(f"Alertmanager: {error}; {len(sent)} alarms {left}\n")
                if not refused:
                    return
            for group, alert in sent.items():
                if self._waiting.get(group) is alert:
                    del self._waiting[group]


@asynccontextmanager
async def alertmanager(url: str) -> AsyncIterator[Alertmanager]:
    """Open the way to an Alertmanager at an address."""
    async with AsyncClient(url, timeout=10, retries=Retries(attempts=3)) as client:
        one = Alertmanager(client)

        async def again() -> None:
            while True:
                await asyncio.sleep(AGAIN_SECONDS)
                await one.send()

        task = asyncio.ensure_future(again())
        try:
            yield one
        finally:
            task.cancel()
            await one.send()


def _alert(told: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"alertname": "StrangeLine", "severity": "warning", **told.get("labels", {})}
    labels |= {name: told[name] for name in ("log", "reason", "template")}
    words = [told["text"][span["start"] : span["end"]] for span in told["spans"]]
    annotations = {
        "summary": f"{told['log']}: a strange line",
        "text": told["text"],
        "words": " … ".join(words),
    }
    annotations |= {name: str(told[name]) for name in ("number", "count", "score") if name in told}
    return {"labels": labels, "annotations": annotations, "startsAt": datetime.now(UTC).isoformat()}


# ---- metrics ----------------------------------------------------------------------------------------------


Counts = tuple[str, int, Counter[str]]
"""A log, its lines that were judged since its session began, and its alarms since this watch did."""


@contextmanager
def metrics(
    address: tuple[str, int], counted: Callable[[], Iterable[Counts]], reasons: Iterable[str]
) -> Iterator[None]:
    """Serve what was counted of each log for Prometheus to read.

    Raises:
        CommandError: the extra is not installed, or the address cannot be bound.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily
    except ImportError as error:
        raise missing("--metrics") from error

    class Counted:
        def collect(self) -> Iterator[CounterMetricFamily]:
            lines = CounterMetricFamily("rlstm_watch_lines", "Lines judged.", labels=["log"])
            alarms = CounterMetricFamily("rlstm_watch_alarms", "Strange lines.", labels=["log", "reason"])
            for name, judged, told in counted():
                lines.add_metric([name], judged)
                for reason in reasons:
                    alarms.add_metric([name, reason], told[reason])
            yield from (lines, alarms)

    registry = CollectorRegistry()
    registry.register(Counted())
    with binding("--metrics", address):
        server, thread = start_http_server(address[1], address[0], registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""`rlstm probe`: what a caller gets, measured from outside, for Prometheus.

A server measures when it makes an event; what a proxy does with it then shows only in front of the proxy. One
that holds events back makes the first token late and the gaps between the others vanish.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import click
import httpx
from httpx_sse import connect_sse
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from rlstm_server.metrics import FIRST_TOKEN_SECONDS, TOKEN_SECONDS

TOKENS = 64
TIMEOUT_SECONDS = 60.0
GAP_SECONDS = (0.00002, 0.00005, 0.0001, *TOKEN_SECONDS)
"""From far below the time in which a token is made: what arrives together has next to no gaps."""

OUTCOMES = ("ok", "refused", "error")


class Probe:
    """Asks a service for a short text as a stream, and remembers how it came."""

    def __init__(self, url: str, key: str | None, registry: CollectorRegistry) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)
        self.requests = Counter(
            "rlstm_probe_requests", "Requests of the probe by outcome", ("outcome",), registry=registry
        )
        self.first_token_seconds = Histogram(
            "rlstm_probe_time_to_first_token_seconds",
            "Request to first token, from outside",
            buckets=FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self.inter_token_seconds = Histogram(
            "rlstm_probe_inter_token_seconds",
            "Between two tokens, from outside",
            buckets=GAP_SECONDS,
            registry=registry,
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)

    def ask(self) -> str:
        """Ask once; the outcome. Only a text that came whole is measured."""
        try:
            outcome, times = self._times()
        except httpx.HTTPError:
            outcome, times = "error", []
        self.requests.labels(outcome).inc()
        if outcome == "ok":
            self.first_token_seconds.observe(times[1] - times[0])
            for before, after in pairwise(times[1:]):
                self.inter_token_seconds.observe(after - before)
        return outcome

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _times(self) -> tuple[str, list[float]]:
        """The outcome, and when the request was sent and each token came."""
        times = [time.perf_counter()]
        body = {"prompt": "", "max_tokens": TOKENS, "stream": True}
        with connect_sse(self._client, "POST", "/generate", json=body) as source:
            status, ended = source.response.status_code, False
            if status != httpx.codes.OK:
                return ("refused" if status in (429, 503) else "error"), times
            for event in source.iter_sse():
                if event.event == "token":
                    times.append(time.perf_counter())
                elif event.event == "end":
                    ended = event.json()["finish_reason"] in ("length", "stop")
        return ("ok" if ended and len(times) > 1 else "error"), times


@click.command()
@click.argument("url", help="The service, as callers reach it.")
@click.option("--port", default=9101, help="Where Prometheus finds the figures.")
@click.option("--every", type=click.FloatRange(1), default=15.0, help="Seconds from one request to the next.")
@click.option("--key-file", type=click.Path(path_type=Path), help="File with a key of scope generate.")
@click.option("--once", is_flag=True, help="Ask once, say what came of it, and end.")
def probe(url: str, port: int, every: float, key_file: Path | None, once: bool) -> None:
    """Measure a service from outside: a short stream now and then, its figures for Prometheus."""
    try:
        key = None if key_file is None else key_file.read_text().strip()
    except OSError as error:
        raise click.BadParameter(f"cannot read {key_file}: {error.strerror}") from None
    registry = CollectorRegistry()
    try:
        asks = Probe(url, key, registry)
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise click.BadParameter(f"the address, or a proxy variable, cannot be used: {error}") from None
    if once:
        outcome = asks.ask()
        click.echo(outcome)
        raise click.exceptions.Exit(0 if outcome == "ok" else 1)
    start_http_server(port, registry=registry)
    click.echo(f"rlstm probe: {url} every {every:g} s, figures on port {port}")
    while True:
        asks.ask()
        time.sleep(every)

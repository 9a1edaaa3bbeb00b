import json
import logging
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rlstm_server import telemetry
from rlstm_server.errors import StartupError
from rlstm_server.logs import JsonFormatter
from rlstm_server.settings import load_settings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
async def traced(serve, exporter):
    """A client of a server that gives its spans to `exporter`."""
    provider = telemetry.provider_for(exporter)
    async with serve(tracer_provider=provider) as client:
        client.flush = provider.force_flush
        yield client


def spans(client, exporter):
    """Everything that was exported so far, by name."""
    client.flush()
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_request_is_a_span_named_after_its_route(traced, exporter):
    """With its ids, as a part of the caller's trace."""
    made = await traced.post("/sessions", json={})
    path, headers = f"/sessions/{made.json()['id']}/append", {"traceparent": PARENT, "x-request-id": "r-7"}
    await traced.post(path, json={"text": "a"}, headers=headers)
    span = spans(traced, exporter)["POST /sessions/{session_id}/append"]
    assert span.attributes["rlstm.request_id"] == "r-7"
    assert span.attributes["rlstm.session_id"] == made.json()["id"]
    assert span.attributes["http.response.status_code"] == 200
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert span.resource.attributes["service.name"] == "rlstm"
    assert span.end_time > span.start_time


async def test_no_text_of_a_caller_is_exported(traced, exporter):
    """Neither of bodies, nor of paths, queries, headers, methods and hosts."""
    headers = {"traceparent": PARENT, "tracestate": "canary=canary", "baggage": "canary=canary"}
    await traced.post("/score", json={"text": "canary"}, headers=headers | {"user-agent": "canary"})
    await traced.post("/score", json={"text": "canary", "unit": "canary"})
    await traced.post("/sessions", json={"name": "canary", "text": "canary"})
    await traced.get("/canary?canary=canary")
    await traced.get("/sessions?cursor=canary")
    await traced.request("CANARY", "/score")
    await traced.get("/health/live", headers={"host": "canary"})
    spans(traced, exporter)
    exported = exporter.get_finished_spans()
    assert len(exported) == 7
    assert not [span for span in exported if "canary" in span.to_json().lower()]
    assert not [span for span in exported if "canary" in span.context.trace_state.to_header()]


async def test_a_fault_is_an_error_by_its_class(serve, exporter, monkeypatch):
    """Not by its message, which may quote anything."""
    provider = telemetry.provider_for(exporter)
    async with serve(tracer_provider=provider) as client:

        async def broken():
            raise RuntimeError("canary")

        monkeypatch.setattr(client.app.state.services.engine, "ready", broken)
        client.flush = provider.force_flush
        assert (await client.get("/health/ready")).status_code == 500
        span = spans(client, exporter)["GET /health/ready"]
    assert span.status.status_code == StatusCode.ERROR
    assert "canary" not in span.to_json()


async def test_a_line_of_the_log_names_the_trace(traced, caplog):
    """By it a request's line and its span find each other."""
    with caplog.at_level(logging.INFO, logger="rlstm_server"):
        await traced.post("/score", json={"text": "a"}, headers={"traceparent": PARENT})
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert line["trace_id"] == PARENT.split("-")[1]


async def test_what_is_left_is_exported_at_the_end(serve, exporter):
    """A batch that waits is not lost with the server."""
    async with serve(tracer_provider=telemetry.provider_for(exporter)) as client:
        await client.post("/score", json={"text": "a"})
    assert [span.name for span in exporter.get_finished_spans()] == ["POST /score"]


async def test_nothing_is_traced_unless_asked_for(serve, monkeypatch, caplog):
    """Not by FastAPI's own variable either, which would log what callers sent."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert load_settings().otel is False
    with caplog.at_level(logging.INFO, logger="rlstm_server"):
        async with serve() as client:
            await client.post("/score", json={"text": "a"}, headers={"traceparent": PARENT})
            assert client.app._native_telemetry.enabled() is False
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert not [line for line in lines if "trace_id" in line]


def test_the_setting_sends_spans_where_opentelemetry_says(monkeypatch):
    """The exporter of the standard variables, in batches."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    provider = telemetry.provider_of_environment()
    assert provider.resource.attributes["service.name"] == "mine"
    provider.shutdown()


def test_without_the_packages_the_setting_says_what_to_install(monkeypatch):
    """And the server does not start as if it traced."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartupError, match=r"mogrifier-rlstm\[otel\]"):
        telemetry.provider_of_environment()

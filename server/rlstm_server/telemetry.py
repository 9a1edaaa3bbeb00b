"""OpenTelemetry: a span for each request, without anything that a caller wrote.

FastAPI makes the spans. It would put paths and queries into them, which callers write: what leaves the
process are the attributes of `KEPT`, of which none is theirs but ids in our own form. Where spans go is said
by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry.trace import SpanContext

from rlstm_server.errors import StartupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

REQUEST_ID = "rlstm.request_id"
SESSION_ID = "rlstm.session_id"
KEPT = frozenset(
    {
        "error.type",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "network.protocol.name",
        "network.protocol.version",
        "url.scheme",
        REQUEST_ID,
        SESSION_ID,
    }
)

OFF: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Said outright: a variable of FastAPI's would turn on logs that quote what callers sent."""


def tracing(provider: TracerProvider | None) -> TelemetryConfig:
    """What FastAPI is told: to trace requests to `provider`, or nothing."""
    if provider is None:
        return OFF
    return {**OFF, "tracing": True, "operation_spans": False, "tracer_provider": provider}


def provider_of_environment() -> TracerProvider:
    """Send spans where OpenTelemetry's variables say.

    Raises StartupError where the packages for it are not installed, or a variable cannot be used.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return provider_for(OTLPSpanExporter())
    except ImportError:
        raise StartupError("RLSTM_OTEL: install mogrifier-rlstm[otel] to trace requests") from None
    except ValueError as error:
        raise StartupError(f"RLSTM_OTEL: {error}") from None


def provider_for(exporter: SpanExporter) -> TracerProvider:
    """Give spans to an exporter, a batch at a time, off the event loop."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    class Reducing(BatchSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            super().on_end(_reduced(span))

    name = os.environ.get("OTEL_SERVICE_NAME", "rlstm")
    provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
    provider.add_span_processor(Reducing(exporter))
    return provider


def _reduced(span: ReadableSpan) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan

    attributes: dict[str, Any] = {
        name: value for name, value in (span.attributes or {}).items() if name in KEPT
    }
    return ReadableSpan(
        name=span.name,
        context=_without_state(span.context),
        parent=_without_state(span.parent),
        resource=span.resource,
        attributes=attributes,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_state(context: SpanContext | None) -> SpanContext | None:
    """A span's ids; its `tracestate` is a caller's."""
    if context is None:
        return None
    return SpanContext(context.trace_id, context.span_id, context.is_remote, context.trace_flags)

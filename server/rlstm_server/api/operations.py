"""Routes for those who run the server: health, metrics, and what this server is."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from rlstm_server.api.bodies import problems, respond
from rlstm_server.api.dependencies import ContextDep

routes = APIRouter(tags=["operations"])
TEXT = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()}


@routes.head("/health/live", include_in_schema=False)
@routes.get("/health/live", responses=problems())
async def live() -> Response:
    """Answer as long as the process does; touches neither model nor store."""
    return Response(b'{"status":"live"}', media_type="application/json")


@routes.head("/health/ready", include_in_schema=False)
@routes.get("/health/ready", responses=problems())
async def ready(context: ContextDep) -> Response:
    """Answer 200 when work can be taken: model loaded, store reachable, not draining; else 503."""
    await context.engine.ready()
    return Response(b'{"status":"ready"}', media_type="application/json")


@routes.get("/info", responses=problems())
async def about(context: ContextDep) -> Response:
    """Describe the model, the limits, the defaults and the version."""
    return await respond(lambda: context.services.about)


@routes.get("/metrics", responses=TEXT, response_class=Response)
async def metrics(context: ContextDep) -> Response:
    """Write all metrics in Prometheus' text form."""
    text, media_type = await asyncio.to_thread(context.metrics.exposition)
    return Response(text, headers={"content-type": media_type})

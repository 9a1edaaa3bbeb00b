"""Routes for those who run the server: health, metrics, and what this server is."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from rlstm_server.api.bodies import problems, respond
from rlstm_server.api.dependencies import ContextDep


async def live() -> Response:
    """Answer as long as the process does; touches neither model nor store."""
    return Response(b'{"status":"live"}', media_type="application/json")


async def ready(context: ContextDep) -> Response:
    """Answer 200 when work can be taken: model loaded, store reachable, not draining; else 503."""
    await context.engine.ready()
    return Response(b'{"status":"ready"}', media_type="application/json")


async def about(context: ContextDep) -> Response:
    """Describe the model, the limits, the defaults and the version."""
    return await respond(lambda: context.services.about)


async def metrics(context: ContextDep) -> Response:
    """Write all metrics in Prometheus' text form."""
    text, media_type = await asyncio.to_thread(context.metrics.exposition)
    return Response(text, headers={"content-type": media_type})


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(tags=["operations"])
    routes.add_api_route("/health/live", live, methods=["GET"], responses=problems())
    routes.add_api_route("/health/live", live, methods=["HEAD"], include_in_schema=False)
    routes.add_api_route("/health/ready", ready, methods=["GET"], responses=problems())
    routes.add_api_route("/health/ready", ready, methods=["HEAD"], include_in_schema=False)
    routes.add_api_route("/info", about, methods=["GET"], responses=problems())
    routes.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
        response_class=Response,
    )
    return routes

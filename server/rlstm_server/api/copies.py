"""Routes of sessions that are made from another: forks, and files that travel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from rlstm_server.api.answers import json_response
from rlstm_server.api.bodies import StrictRoute, check_octets
from rlstm_server.api.dependencies import (
    CallerDep,
    HeldDep,
    KeyDep,
    MinVersion,
    Services,
    ServicesDep,
    SessionDep,
)
from rlstm_server.api.session_bodies import MAX_TTL_SECONDS, NAME, ForkIn
from rlstm_server.api.session_fields import made_fields
from rlstm_server.api.session_shapes import CreatedOut
from rlstm_server.api.sessions import answers
from rlstm_server.api.shapes import BODY, SESSION, problems
from rlstm_server.schemas import CreatedSession, ForkRequest, ImportRequest

OCTETS = "application/octet-stream"
FILE: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}

Name = Annotated[str | None, Query(pattern=NAME, description="Unique among your sessions.")]
TTLSeconds = Annotated[
    float | None, Query(ge=1, le=MAX_TTL_SECONDS, description="It expires this long after its last change.")
]


async def fork(
    session: SessionDep, body: ForkIn, services: ServicesDep, caller: CallerDep, key: KeyDep
) -> Response:
    """Make an independent copy of a session, as it is or as it was at a named snapshot."""
    made = await services.engine.fork(
        ForkRequest(
            caller=caller,
            session=session,
            snapshot=body.snapshot,
            name=body.name,
            ttl_seconds=body.ttl_seconds,
            metadata=body.metadata,
            min_version=body.min_version,
            key=key,
        )
    )
    return await _made(made, services)


async def export(
    session: SessionDep,
    services: ServicesDep,
    caller: CallerDep,
    held: HeldDep,
    min_version: MinVersion = None,
) -> Response:
    """Give the session as a signed file, which this server's tenant can import again."""
    exported = await services.engine.export(caller, session, min_version)
    held.expect_file(exported.size)  # the state stays in memory until the slowest reader has it
    headers = {
        "content-length": str(exported.size),
        "content-disposition": f'attachment; filename="{session}.rlstm"',
        "etag": f'"{exported.version}"',
    }
    return StreamingResponse(iterate_in_threadpool(exported.pieces), headers=headers, media_type=OCTETS)


async def import_session(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    name: Name = None,
    ttl_seconds: TTLSeconds = None,
) -> Response:
    """Make a session of an exported file; it gets an id of its own."""
    check_octets(request.headers.getlist("content-type"))
    made = await services.engine.import_session(
        ImportRequest(caller=caller, data=await request.body(), name=name, ttl_seconds=ttl_seconds, key=key)
    )
    return await _made(made, services)


async def _made(made: CreatedSession, services: Services) -> Response:
    return await json_response(
        lambda: made_fields(made),
        tokens=0,
        version=made.info.version,
        status=201,
        headers={"location": f"/sessions/{made.info.id}"},
    )


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(prefix="/sessions", route_class=StrictRoute, tags=["sessions"])
    add, one = routes.add_api_route, "/{session_id}"
    add(
        f"{one}/fork",
        fork,
        methods=["POST"],
        responses=answers(201, CreatedOut, *BODY, *SESSION),
        status_code=201,
    )
    add(
        f"{one}/export",
        export,
        methods=["GET"],
        responses={200: {"content": FILE}, **problems(*SESSION)},
        response_class=Response,
    )
    add(
        "/import",
        import_session,
        methods=["POST"],
        responses=answers(201, CreatedOut, *BODY, *SESSION),
        status_code=201,
        openapi_extra={"requestBody": {"required": True, "content": FILE}},
    )
    return routes

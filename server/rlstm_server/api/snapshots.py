"""Routes of named snapshots: versions of a session to go back to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from rlstm_server.api.answers import json_response
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import (
    CallerDep,
    IfMatchDep,
    KeyDep,
    MinVersion,
    ServicesDep,
    SessionDep,
    form,
)
from rlstm_server.api.session_bodies import SNAPSHOT_NAME, RestoreIn, SnapshotIn
from rlstm_server.api.session_fields import snapshot_fields
from rlstm_server.api.session_shapes import ChangedOut, SnapshotsOut, TakenOut
from rlstm_server.api.sessions import answers, changed
from rlstm_server.api.shapes import BODY, SESSION, problems
from rlstm_server.errors import NotFound
from rlstm_server.schemas import RestoreRequest, SnapshotRequest


async def _snapshot(
    snapshot: Annotated[
        str, Path(description="The snapshot's name.", json_schema_extra=form(SNAPSHOT_NAME.pattern))
    ],
) -> str:
    if not SNAPSHOT_NAME.fullmatch(snapshot):
        raise NotFound
    return snapshot


SnapshotDep = Annotated[str, Depends(_snapshot)]


async def take(
    session: SessionDep,
    body: SnapshotIn,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Give the present version a name to go back to. No version is made."""
    answer = await services.engine.take_snapshot(
        SnapshotRequest(caller=caller, session=session, name=body.name, key=key, if_match=if_match)
    )
    return await json_response(
        lambda: (
            snapshot_fields(answer.snapshot) | {"durability": answer.durability, "replayed": answer.replayed}
        ),
        tokens=0,
        version=answer.snapshot.version,
        status=201,
    )


async def listing(
    session: SessionDep, services: ServicesDep, caller: CallerDep, min_version: MinVersion = None
) -> Response:
    """List a session's named snapshots, oldest version first."""
    found = await services.engine.list_snapshots(caller.tenant, session, min_version)
    return await json_response(
        lambda: {"snapshots": [snapshot_fields(snapshot) for snapshot in found]}, tokens=len(found)
    )


async def drop(
    session: SessionDep, snapshot: SnapshotDep, services: ServicesDep, caller: CallerDep
) -> Response:
    """Remove a named snapshot. Repeating it is harmless."""
    await services.engine.drop_snapshot(caller.tenant, session, snapshot)
    return Response(status_code=204)


async def restore(
    session: SessionDep,
    body: RestoreIn,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Go back to a named snapshot: state, position and totals are as they were then, the version is new."""
    request = RestoreRequest(
        caller=caller, session=session, snapshot=body.snapshot, key=key, if_match=if_match
    )
    return await changed(await services.engine.restore(request))


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(prefix="/sessions/{session_id}", route_class=StrictRoute, tags=["sessions"])
    add = routes.add_api_route
    add(
        "/snapshots",
        take,
        methods=["POST"],
        responses=answers(201, TakenOut, *BODY, *SESSION),
        status_code=201,
    )
    add("/snapshots", listing, methods=["GET"], responses=answers(200, SnapshotsOut, *SESSION))
    add("/snapshots/{snapshot}", drop, methods=["DELETE"], responses=problems(*SESSION), status_code=204)
    add("/restore", restore, methods=["POST"], responses=answers(200, ChangedOut, *BODY, *SESSION))
    return routes

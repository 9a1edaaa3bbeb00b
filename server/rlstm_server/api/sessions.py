"""The session routes: streams with a state and weights of their own, their snapshots, forks and files."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request, Response

from rlstm_server.api.bodies import BODY, SESSION, answers, check_declared, problems, respond, strict_routes
from rlstm_server.api.dependencies import (
    AskingDep,
    ChangingDep,
    ContextDep,
    CopyingDep,
    KeyedDep,
    MinVersion,
    RequestContext,
    ResumingDep,
    SnapshotDep,
)
from rlstm_server.api.generate import TOKEN_NUMBERS, streamed
from rlstm_server.api.generate import respond as respond_events
from rlstm_server.errors import InvalidField
from rlstm_server.schemas.generation import SessionGenerate
from rlstm_server.schemas.sessions import (
    AppendAnswer,
    AppendRequest,
    CandidatesAnswer,
    CandidatesRequest,
    ChangeAnswer,
    CreatedSession,
    CreateSession,
    ForkRequest,
    ImportRequest,
    Name,
    NoteAnswer,
    ResetRequest,
    RestoreRequest,
    SessionInfo,
    SessionPage,
    SnapshotAnswer,
    SnapshotPage,
    SnapshotRequest,
    TTLSeconds,
    UpdateRequest,
)
from rlstm_server.schemas.wire import Unit

MAX_PAGE: Final = 1000
SESSION_BYTES: Final = 20_480
"""What a session of a page takes at most: above all its metadata."""

OCTETS: Final = "application/octet-stream"
FILE: Final[dict[str, Any]] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Sessions on a page.")]
NameQuery = Annotated[
    Name | None, Query(description="Only the session of this name; none where there is none.")
]
Cursor = Annotated[str | None, Query(max_length=512, description="As the page before gave it.")]
NewName = Annotated[Name | None, Query(description="Unique among your sessions.")]

ONE: Final = "/{session_id}"
CHANGE: Final = (*BODY, *SESSION)
routes = strict_routes("sessions", "/sessions")


def change(path: str, schema: type, status: int = 200) -> Callable[[Handler], Handler]:
    """Make the handler that follows a route of POST that answers so."""
    return routes.post(path, responses=answers(status, schema, *CHANGE), status_code=status)


# ---- sessions ---------------------------------------------------------------------------------------------


@change("", CreatedSession, 201)
async def create(body: CreateSession, context: KeyedDep) -> Response:
    """Make a session; a first text is appended at once."""
    return await _made(context, await context.engine.create_session(body.by(context.call)), body.unit)


@routes.get("", responses=answers(200, SessionPage, 422))
async def listing(
    context: ContextDep,
    limit: PageSize = 100,
    cursor: Cursor = None,
    name: NameQuery = None,
) -> Response:
    """List your sessions, oldest first, a page at a time; or find the one of a name."""
    if name is not None and cursor is not None:
        raise InvalidField("cursor", "cursor: there is one page of a name")
    context.held.take(limit * SESSION_BYTES)
    page = await context.engine.list_sessions(context.call, limit, cursor, name)
    return await respond(page, tokens=len(page.sessions))


@routes.get(ONE, responses=answers(200, SessionInfo, *SESSION))
async def info(context: AskingDep, min_version: MinVersion = None) -> Response:
    """Tell where a session stands and what learning has saved it."""
    found = await context.engine.session_info(context.call, min_version)
    return await respond(found, version=found.version)


@routes.get(f"{ONE}/note", responses=answers(200, NoteAnswer, *SESSION))
async def note(context: AskingDep, min_version: MinVersion = None) -> Response:
    """Give the newest note."""
    found = await context.engine.session_note(context.call, min_version)
    return await respond(found, version=found.version)


@routes.patch(ONE, responses=answers(200, ChangeAnswer, *CHANGE))
async def update(body: UpdateRequest, context: ChangingDep) -> Response:
    """Change the time to live, the metadata, or whether appends may learn."""
    return await _changed(await context.engine.update(body.by(context.call)))


@change(f"{ONE}/append", AppendAnswer)
async def append(body: AppendRequest, context: ChangingDep) -> Response:
    """Score this text with the weights as they are, then learn from it."""
    if body.scores in ("tokens", "parts"):
        context.held.expect(len(body.tokens or ()) + len((body.text or "").encode()))
    answer = await context.engine.append(body.by(context.call))
    tokens = 0 if answer.columns is None else len(answer.columns.ids)
    return await respond(answer, unit=body.unit, tokens=tokens, version=answer.version)


@change(f"{ONE}/score", CandidatesAnswer)
async def score(body: CandidatesRequest, context: AskingDep) -> Response:
    """Rank continuations against the session as it is; nothing changes."""
    answer = await context.engine.score_candidates(body.by(context.call))
    return await respond(answer, unit=body.unit, tokens=len(answer.candidates), version=answer.version)


@routes.post(f"{ONE}/generate", responses=streamed(*SESSION))
async def generate(body: SessionGenerate, context: ResumingDep) -> Response:
    """Continue the session's text with its own weights; keep it in the session where asked."""
    if context.call.after is not None and not body.stream:
        raise InvalidField("last-event-id", "last-event-id: needs stream")
    context.trace.changes = body.commit
    if not body.stream:
        context.held.expect((1 + TOKEN_NUMBERS) * body.max_tokens)
    events = context.engine.generate_in_session(body.by(context.call))
    return await respond_events(events, body, context)


@change(f"{ONE}/reset", ChangeAnswer)
async def reset(body: ResetRequest, context: ChangingDep) -> Response:
    """Forget the fast weights, the recurrent state, or both."""
    return await _changed(await context.engine.reset(body.by(context.call)))


@routes.delete(ONE, responses=problems(*SESSION), status_code=204)
async def delete(context: AskingDep) -> Response:
    """End a session for good. Repeating it is harmless."""
    await context.engine.delete(context.call)
    return Response(status_code=204)


async def _changed(answer: ChangeAnswer) -> Response:
    return await respond(answer, version=answer.info.version)


async def _made(context: RequestContext, made: CreatedSession, unit: Unit = "nats") -> Response:
    context.trace.made = made.info.id
    place = posixpath.relpath(f"/sessions/{made.info.id}", posixpath.dirname(context.path))
    columns = None if made.append is None else made.append.columns
    return await respond(
        made,
        unit=unit,
        tokens=0 if columns is None else len(columns.ids),
        version=made.info.version,
        status=201,
        headers={"location": place},  # wherever a proxy has put the routes
    )


# ---- snapshots --------------------------------------------------------------------------------------------


@change(f"{ONE}/snapshots", SnapshotAnswer, 201)
async def take(body: SnapshotRequest, context: ChangingDep) -> Response:
    """Give the present version a name to go back to. No version is made."""
    taken = await context.engine.take_snapshot(body.by(context.call))
    return await respond(taken, version=taken.snapshot.version, status=201)


@routes.get(f"{ONE}/snapshots", responses=answers(200, SnapshotPage, *SESSION))
async def list_snapshots(context: AskingDep, min_version: MinVersion = None) -> Response:
    """List a session's named snapshots, oldest version first."""
    found = await context.engine.list_snapshots(context.call, min_version)
    return await respond(SnapshotPage(snapshots=found), tokens=len(found))


@routes.delete(f"{ONE}/snapshots/{{snapshot}}", responses=problems(*SESSION), status_code=204)
async def drop(context: AskingDep, snapshot: SnapshotDep) -> Response:
    """Remove a named snapshot. Repeating it is harmless."""
    await context.engine.drop_snapshot(context.call, snapshot)
    return Response(status_code=204)


@change(f"{ONE}/restore", ChangeAnswer)
async def restore(body: RestoreRequest, context: ChangingDep) -> Response:
    """Go back to a named snapshot: state, position and totals are as they were then, the version is new."""
    return await _changed(await context.engine.restore(body.by(context.call)))


# ---- forks and files --------------------------------------------------------------------------------------


@change(f"{ONE}/fork", CreatedSession, 201)
async def fork(body: ForkRequest, context: CopyingDep) -> Response:
    """Make an independent copy of a session, as it is or as it was at a named snapshot."""
    return await _made(context, await context.engine.fork(body.by(context.call)))


@routes.get(
    f"{ONE}/export", responses={200: {"content": FILE}, **problems(*SESSION)}, response_class=Response
)
async def export(context: AskingDep, min_version: MinVersion = None) -> Response:
    """Give the session as a safetensors file, which can be imported again where its model is served."""
    exported = await context.engine.export(context.call, min_version)
    context.held.expect_file(len(exported.data))
    headers = {
        "content-disposition": f'attachment; filename="{exported.session}.rlstm"',
        "etag": f'"{exported.version}"',
    }
    return Response(exported.data, headers=headers, media_type=OCTETS)


@routes.post(
    "/import",
    responses=answers(201, CreatedSession, *CHANGE),
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def import_session(
    request: Request,
    context: KeyedDep,
    name: NewName = None,
    ttl_seconds: Annotated[TTLSeconds, Query()] = None,
) -> Response:
    """Make a session of an exported file; it gets an id of its own."""
    check_declared(request, OCTETS)
    asked = ImportRequest(data=await request.body(), name=name, ttl_seconds=ttl_seconds).by(context.call)
    return await _made(context, await context.engine.import_session(asked))

"""The session routes: streams with a state and weights of their own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from rlstm_server.api.answers import json_response
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import (
    CallerDep,
    HeldDep,
    IfMatchDep,
    KeyDep,
    LastEventIdDep,
    MinVersion,
    ServicesDep,
    SessionDep,
    TraceDep,
)
from rlstm_server.api.generate import respond as respond_events
from rlstm_server.api.generate import streamed
from rlstm_server.api.session_bodies import (
    NAME,
    AppendIn,
    CandidatesIn,
    ContinueIn,
    CreateIn,
    ResetIn,
    UpdateIn,
)
from rlstm_server.api.session_fields import append_fields, made_fields, ranked_fields, session_fields
from rlstm_server.api.session_shapes import (
    AppendOut,
    CandidatesOut,
    ChangedOut,
    CreatedOut,
    SessionOut,
    SessionsOut,
)
from rlstm_server.api.shapes import BODY, SESSION, passage, problems
from rlstm_server.errors import InvalidField
from rlstm_server.schemas import (
    AppendAnswer,
    AppendRequest,
    CandidatesRequest,
    ChangeAnswer,
    CreateSession,
    ResetRequest,
    SessionGenerate,
    UpdateRequest,
)

MAX_PAGE = 1000
SESSION_BYTES = 20_480
"""What a session of a page takes at most: above all its metadata."""

PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Sessions on a page.")]
NameQuery = Annotated[
    str | None, Query(pattern=NAME, description="Only the session of this name; none where there is none.")
]
Cursor = Annotated[str | None, Query(max_length=512, description="As the page before gave it.")]


async def create(body: CreateIn, services: ServicesDep, caller: CallerDep, key: KeyDep) -> Response:
    """Make a session; a first text is appended at once."""
    given = body.text is not None or body.tokens is not None
    made = await services.engine.create_session(
        CreateSession(
            caller=caller,
            model=body.model,
            name=body.name,
            adaptation=body.adaptation.request(),
            ttl_seconds=body.ttl_seconds,
            metadata=body.metadata,
            first=passage(body.text, body.tokens) if given else None,
            scores=body.scores,
            key=key,
        )
    )

    def fields() -> dict[str, Any]:
        document = made_fields(made)
        if made.append is not None:
            document["append"] = append_fields(made.append, body.unit)
        return document

    return await json_response(
        fields,
        tokens=_tokens(made.append),
        version=made.info.version,
        status=201,
        timings=made.append.timings if made.append else None,
        headers={"location": f"/sessions/{made.info.id}"},
    )


async def listing(
    services: ServicesDep,
    caller: CallerDep,
    held: HeldDep,
    limit: PageSize = 100,
    cursor: Cursor = None,
    name: NameQuery = None,
) -> Response:
    """List your sessions, oldest first, a page at a time; or find the one of a name."""
    if name is not None and cursor is not None:
        raise InvalidField("cursor", "cursor: there is one page of a name")
    held.expect_bytes(limit * SESSION_BYTES)
    page = await services.engine.list_sessions(caller.tenant, limit, cursor, name)
    return await json_response(
        lambda: {"sessions": [session_fields(info) for info in page.sessions], "cursor": page.cursor},
        tokens=len(page.sessions),
    )


async def info(
    session: SessionDep, services: ServicesDep, caller: CallerDep, min_version: MinVersion = None
) -> Response:
    """Tell where a session stands and what learning has saved it."""
    found = await services.engine.session_info(caller.tenant, session, min_version)
    return await json_response(lambda: session_fields(found), tokens=0, version=found.version)


async def update(
    session: SessionDep,
    body: UpdateIn,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Change the time to live, the metadata, or whether appends may learn."""
    answer = await services.engine.update(
        UpdateRequest(
            caller=caller,
            session=session,
            ttl_seconds=body.ttl_seconds,
            metadata=body.metadata,
            learning=body.learning,
            key=key,
            if_match=if_match,
        )
    )
    return await changed(answer)


async def append(
    session: SessionDep,
    body: AppendIn,
    services: ServicesDep,
    caller: CallerDep,
    held: HeldDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Score this text with the weights as they are, then learn from it."""
    if body.scores == "tokens":
        held.expect(len(body.tokens or ()) + len((body.text or "").encode()))
    answer = await services.engine.append(
        AppendRequest(
            caller=caller,
            session=session,
            passage=passage(body.text, body.tokens),
            learn=body.learn,
            final=body.final,
            scores=body.scores,
            key=key,
            if_match=if_match,
        )
    )
    return await json_response(
        lambda: append_fields(answer, body.unit),
        tokens=_tokens(answer),
        timings=answer.timings,
        version=answer.version,
    )


async def score(
    session: SessionDep, body: CandidatesIn, services: ServicesDep, caller: CallerDep
) -> Response:
    """Rank continuations against the session as it is; nothing changes."""
    answer = await services.engine.score_candidates(
        CandidatesRequest(
            caller=caller,
            session=session,
            candidates=tuple(candidate.candidate(index) for index, candidate in enumerate(body.candidates)),
            weights=body.weights.weights(body.unit),
            min_version=body.min_version,
        )
    )
    return await json_response(
        lambda: {
            "version": answer.version,
            "unit": body.unit,
            "candidates": [ranked_fields(ranked, body.unit) for ranked in answer.candidates],
        },
        tokens=len(answer.candidates),
        timings=answer.timings,
        version=answer.version,
    )


async def generate(
    session: SessionDep,
    body: ContinueIn,
    services: ServicesDep,
    caller: CallerDep,
    held: HeldDep,
    trace: TraceDep,
    key: KeyDep,
    if_match: IfMatchDep,
    last_event_id: LastEventIdDep,
) -> Response:
    """Continue the session's text with its own weights; keep it in the session where asked."""
    if last_event_id is not None and not body.stream:
        raise InvalidField("last-event-id", "last-event-id: needs stream")
    trace.changes = body.commit
    if not body.stream:
        held.expect(body.max_tokens)
    events = services.engine.generate_in_session(
        SessionGenerate(
            caller=caller,
            session=session,
            settings=body.settings(),
            commit=body.commit,
            learn_from_output=body.learn_from_output,
            key=key,
            if_match=if_match,
            min_version=body.min_version,
            after=last_event_id,
        )
    )
    return await respond_events(events, body, services, trace)


async def reset(
    session: SessionDep,
    body: ResetIn,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Forget the fast weights, the recurrent state, or both."""
    answer = await services.engine.reset(
        ResetRequest(caller=caller, session=session, scope=body.what, key=key, if_match=if_match)
    )
    return await changed(answer)


async def delete(session: SessionDep, services: ServicesDep, caller: CallerDep) -> Response:
    """End a session for good. Repeating it is harmless."""
    await services.engine.delete(caller.tenant, session)
    return Response(status_code=204)


async def changed(answer: ChangeAnswer) -> Response:
    """Answer with a session after a change."""
    return await json_response(
        lambda: session_fields(answer.info) | {"durability": answer.durability, "replayed": answer.replayed},
        tokens=0,
        version=answer.info.version,
    )


def _tokens(answer: AppendAnswer | None) -> int:
    return len(answer.columns.ids) if answer is not None and answer.columns is not None else 0


def answers(status: int, model: Any, *refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers, and the statuses that it refuses with."""
    return {status: {"model": model}, **problems(*refusals)}


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(prefix="/sessions", route_class=StrictRoute, tags=["sessions"])
    add, one = routes.add_api_route, "/{session_id}"
    add("", create, methods=["POST"], responses=answers(201, CreatedOut, *BODY, *SESSION), status_code=201)
    add("", listing, methods=["GET"], responses=answers(200, SessionsOut, 422))
    add(one, info, methods=["GET"], responses=answers(200, SessionOut, *SESSION))
    add(one, update, methods=["PATCH"], responses=answers(200, ChangedOut, *BODY, *SESSION))
    add(one, delete, methods=["DELETE"], responses=problems(*SESSION), status_code=204)
    add(f"{one}/append", append, methods=["POST"], responses=answers(200, AppendOut, *BODY, *SESSION))
    add(f"{one}/score", score, methods=["POST"], responses=answers(200, CandidatesOut, *BODY, *SESSION))
    add(f"{one}/generate", generate, methods=["POST"], responses=streamed(*SESSION))
    add(f"{one}/reset", reset, methods=["POST"], responses=answers(200, ChangedOut, *BODY, *SESSION))
    return routes

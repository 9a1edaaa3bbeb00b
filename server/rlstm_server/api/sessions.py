"""The session routes: streams with a state and weights of their own."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from rlstm_server.api.answers import FACTORS, Unit, column_fields, identity, json_response, total_fields
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, IfMatchDep, KeyDep, ServicesDep, SessionDep, TraceDep
from rlstm_server.api.generate import STREAMED
from rlstm_server.api.generate import respond as respond_events
from rlstm_server.api.session_shapes import (
    AppendIn,
    AppendOut,
    CandidatesIn,
    CandidatesOut,
    ChangedOut,
    ContinueIn,
    CreatedOut,
    CreateIn,
    ResetIn,
    SessionOut,
    SessionsOut,
)
from rlstm_server.api.shapes import PROBLEMS, passage
from rlstm_server.engine.messages import (
    AppendAnswer,
    AppendRequest,
    CandidatesRequest,
    CreateSession,
    ResetRequest,
    SessionGenerate,
    SessionInfo,
    SessionTotals,
)

MAX_PAGE = 1000

PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Sessions on a page.")]
Cursor = Annotated[str | None, Query(max_length=512, description="As the page before gave it.")]


async def create(body: CreateIn, services: ServicesDep, caller: CallerDep, key: KeyDep) -> Response:
    """Make a session; a first text is appended at once."""
    given = body.text is not None or body.tokens is not None
    made = await services.engine.create_session(
        CreateSession(
            caller=caller,
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
        document = identity(services.engine.identity) | _session_fields(made.info)
        document |= {"durability": made.durability, "replayed": made.replayed}
        if made.append is not None:
            document["append"] = _append_fields(made.append, body.unit)
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
    services: ServicesDep, caller: CallerDep, limit: PageSize = 100, cursor: Cursor = None
) -> Response:
    """List your sessions, oldest first, a page at a time."""
    page = await services.engine.list_sessions(caller.tenant, limit, cursor)
    return await json_response(
        lambda: {"sessions": [_session_fields(info) for info in page.sessions], "cursor": page.cursor},
        tokens=len(page.sessions),
    )


async def info(session: SessionDep, services: ServicesDep, caller: CallerDep) -> Response:
    """Tell where a session stands and what learning has saved it."""
    found = await services.engine.session_info(caller.tenant, session)
    return await json_response(lambda: _session_fields(found), tokens=0, version=found.version)


async def append(
    session: SessionDep,
    body: AppendIn,
    services: ServicesDep,
    caller: CallerDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Score this text with the weights as they are, then learn from it."""
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
        lambda: _append_fields(answer, body.unit),
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
            "candidates": [
                {
                    "id": ranked.id,
                    "logprob": ranked.logprob * FACTORS[body.unit],
                    "tokens": ranked.tokens,
                    "score": ranked.score,
                    "rank": ranked.rank,
                }
                for ranked in answer.candidates
            ],
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
    trace: TraceDep,
    key: KeyDep,
    if_match: IfMatchDep,
) -> Response:
    """Continue the session's text with its own weights; keep it in the session where asked."""
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
    return await json_response(
        lambda: _session_fields(answer.info) | {"durability": answer.durability, "replayed": answer.replayed},
        tokens=0,
        version=answer.info.version,
    )


async def delete(session: SessionDep, services: ServicesDep, caller: CallerDep) -> Response:
    """End a session for good. Repeating it is harmless."""
    await services.engine.delete(caller.tenant, session)
    return Response(status_code=204)


def _tokens(answer: AppendAnswer | None) -> int:
    return len(answer.columns.ids) if answer is not None and answer.columns is not None else 0


def _append_fields(answer: AppendAnswer, unit: Unit) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "version": answer.version,
        "position": answer.position,
        "durability": answer.durability,
        "replayed": answer.replayed,
        "unit": unit,
    }
    if answer.columns is not None:
        fields |= column_fields(answer.columns, unit)
    fields |= {"updates": answer.updates, "guards": answer.guards, "weights": answer.weights}
    fields |= {"norm_ratio": answer.norm_ratio, "pending": answer.pending}
    if answer.totals is not None:
        fields["totals"] = total_fields(answer.totals, unit)
    return fields | {"expires_at": answer.expires_at}


def _session_fields(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "version": info.version,
        "position": info.position,
        "pending": info.pending,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "state_bytes": info.state_bytes,
        "adaptation": info.adaptation,
        "weights": info.weights,
        "norm_ratio": info.norm_ratio,
        "totals": _session_totals(info.totals),
        "metadata": dict(info.metadata),
    }


def _session_totals(totals: SessionTotals) -> dict[str, Any]:
    return {
        "tokens": totals.tokens,
        "bytes": totals.bytes,
        "static_bits": _bits(totals.static_nats),
        "adapted_bits": _bits(totals.adapted_nats),
        "gain": _bits(totals.gain),
        "updates": totals.updates,
        "guards": totals.guards,
    }


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / math.log(2)


def _answers(status: int, model: Any) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": model}, **PROBLEMS}


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(prefix="/sessions", route_class=StrictRoute, tags=["sessions"])
    add, one = routes.add_api_route, "/{session_id}"
    add("", create, methods=["POST"], responses=_answers(201, CreatedOut), status_code=201)
    add("", listing, methods=["GET"], responses=_answers(200, SessionsOut))
    add(one, info, methods=["GET"], responses=_answers(200, SessionOut))
    add(one, delete, methods=["DELETE"], responses=PROBLEMS, status_code=204)
    add(f"{one}/append", append, methods=["POST"], responses=_answers(200, AppendOut))
    add(f"{one}/score", score, methods=["POST"], responses=_answers(200, CandidatesOut))
    add(f"{one}/generate", generate, methods=["POST"], responses=STREAMED)
    add(f"{one}/reset", reset, methods=["POST"], responses=_answers(200, ChangedOut))
    return routes

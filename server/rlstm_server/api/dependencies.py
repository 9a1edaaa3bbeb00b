"""What handlers ask for, each named once as an annotated type, so that a signature reads as a sentence."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from starlette.requests import HTTPConnection

from rlstm_server.api.auth import principal_of
from rlstm_server.api.limits import HELD, Held
from rlstm_server.api.tracing import SESSION_ID, endpoint_of, trace_of
from rlstm_server.caller import Caller
from rlstm_server.engine.engine import Engine
from rlstm_server.errors import InvalidField, NotFound
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import NAME
from rlstm_server.schemas.wire import Call
from rlstm_server.settings import Settings

VERSION_TAG = re.compile(r'"?([0-9]{1,18})"?')
KEY = re.compile(r"[\x21-\x7e]{1,200}")


def form(pattern: str) -> dict[str, Any]:
    """Document what a parameter looks like; the handler checks it, which answers in its own words."""
    return {"pattern": f"^({pattern})$"}


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the running application holds.

    drain    takes no new work, gives what is under way so many seconds, and ends the rest with Draining
    about    the answer of /info
    started  when, in Unix seconds
    """

    settings: Settings
    metrics: Metrics
    engine: Engine
    drain: Callable[[float], Awaitable[None]]
    about: dict[str, Any]
    started: int = field(default_factory=lambda: int(time.time()))


class RequestContext:
    """One request: who asks, what is noted of it, and what the application answers it with."""

    def __init__(self, connection: HTTPConnection) -> None:
        services = connection.app.state.services
        if not isinstance(services, Services):
            raise TypeError("the application has not started")
        self._scope = connection.scope
        self.services, self.engine, self.metrics = services, services.engine, services.metrics
        self.limits = services.settings.limits
        self.trace, self.principal = trace_of(self._scope), principal_of(self._scope)

    @property
    def caller(self) -> Caller:
        """Who asks, and by which route."""
        return Caller(
            tenant=self.principal.tenant,
            request_id=self.trace.request_id,
            endpoint=self.metrics.endpoint(endpoint_of(self._scope)),
            quota=self.principal.quota,
        )

    @property
    def held(self) -> Held:
        """The memory that the request holds; a WebSocket's frames hold none."""
        held = self._scope[HELD]
        if not isinstance(held, Held):
            raise TypeError("the request did not pass the receiving layer")
        return held


# All of these are coroutines, although they wait for nothing: FastAPI sends a plain function through its
# thread pool, which would cost every request several changes of thread.


async def _context(request: Request) -> RequestContext:
    return RequestContext(request)


async def _session(
    request: Request,
    session_id: Annotated[
        str,
        Path(
            description="The id that the server gave the session.", json_schema_extra=form(SESSION_ID.pattern)
        ),
    ],
) -> str:
    if not SESSION_ID.fullmatch(session_id):
        raise NotFound
    trace_of(request.scope).session_id = session_id
    return session_id


async def _snapshot(
    snapshot: Annotated[str, Path(description="The snapshot's name.", json_schema_extra=form(NAME.pattern))],
) -> str:
    if not NAME.fullmatch(snapshot):
        raise NotFound
    return snapshot


async def _idempotency_key(
    key: Annotated[
        str | None,
        Header(
            alias="idempotency-key",
            json_schema_extra=form(KEY.pattern),
            description="Makes a repeat safe: the same key takes effect once and gets the same answer.",
        ),
    ] = None,
) -> str | None:
    if key is not None and not KEY.fullmatch(key):
        raise InvalidField("idempotency-key", "idempotency-key: 1 to 200 visible ASCII characters")
    return key


async def _if_match(
    tag: Annotated[
        str | None,
        Header(
            alias="if-match",
            json_schema_extra=form(rf"{VERSION_TAG.pattern}|\*"),
            description="Refuse (412) unless the session is at this version; `*` is any.",
        ),
    ] = None,
) -> int | None:
    if tag is None or tag == "*":
        return None
    match = VERSION_TAG.fullmatch(tag)
    if match is None:
        raise InvalidField("if-match", "if-match: one version of the session, as its etag gave it")
    return int(match[1])


async def _last_event_id(
    mark: Annotated[
        str | None,
        Header(
            alias="last-event-id",
            max_length=64,
            description="Of a stream of kept text that broke off: the id of the last event that arrived. The"
            " same request with the same key then streams what comes after it.",
        ),
    ] = None,
) -> str | None:
    return mark


ContextDep = Annotated[RequestContext, Depends(_context)]
SessionDep = Annotated[str, Depends(_session)]
KeyDep = Annotated[str | None, Depends(_idempotency_key)]


async def _keyed(context: ContextDep, key: KeyDep) -> Call:
    return Call(caller=context.caller, key=key)


async def _asking(context: ContextDep, session: SessionDep) -> Call:
    return Call(caller=context.caller, session=session)


async def _copying(context: ContextDep, session: SessionDep, key: KeyDep) -> Call:
    return Call(caller=context.caller, session=session, key=key)


async def _changing(
    context: ContextDep, session: SessionDep, key: KeyDep, if_match: Annotated[int | None, Depends(_if_match)]
) -> Call:
    return Call(caller=context.caller, session=session, key=key, if_match=if_match)


async def _resuming(
    changing: Annotated[Call, Depends(_changing)], after: Annotated[str | None, Depends(_last_event_id)]
) -> Call:
    return replace(changing, after=after)


MinVersion = Annotated[int | None, Query(ge=0, lt=2**63, description="Refuse (412) an older session.")]
SnapshotDep = Annotated[str, Depends(_snapshot)]
KeyedDep = Annotated[Call, Depends(_keyed)]
"""A call that makes a session."""
AskingDep = Annotated[Call, Depends(_asking)]
"""A call that reads a session."""
CopyingDep = Annotated[Call, Depends(_copying)]
"""A call that makes a session of another."""
ChangingDep = Annotated[Call, Depends(_changing)]
"""A call that changes a session."""
ResumingDep = Annotated[Call, Depends(_resuming)]
"""A call that may go on with a stream that broke off."""

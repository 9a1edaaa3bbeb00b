"""What handlers ask for, each named once as an annotated type, so that a signature reads as a sentence."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from starlette.requests import HTTPConnection

from rlstm_server.api.layer import EXCHANGE, Exchange
from rlstm_server.api.tracing import SESSION_ID, TRACE, Trace
from rlstm_server.caller import Call
from rlstm_server.engine.engine import Engine
from rlstm_server.errors import NotFound
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import NAME
from rlstm_server.schemas.wire import MinVersionField
from rlstm_server.settings import Settings


def form(pattern: str) -> dict[str, Any]:
    """Document what a name in a path looks like; of any other there is no such thing: 404."""
    return {"pattern": f"^({pattern})$"}


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the running application holds.

    about    the answer of /info
    started  when, in Unix seconds
    """

    settings: Settings
    metrics: Metrics
    engine: Engine
    about: dict[str, Any]
    started: int = field(default_factory=lambda: int(time.time()))


class RequestContext:
    """One request: who asks for what, what is noted of it, and what the application answers it with.

    `call` is what the engine is told of it, `held` the memory that it holds.
    """

    def __init__(
        self,
        connection: HTTPConnection,
        session: str = "",
        *,
        key: str | None = None,
        if_match: str | None = None,
        after: str | None = None,
    ) -> None:
        """Raises NotFound for what is no session's id."""
        scope = connection.scope
        self.services: Services = connection.app.state.services
        self.engine: Engine = self.services.engine
        self.metrics: Metrics = self.services.metrics
        self.limits = self.services.settings.limits
        self.trace: Trace = scope[TRACE]
        self.principal = self.trace.principal
        self.path: str = scope["path"]
        self.held: Exchange = scope[EXCHANGE]
        if session and not SESSION_ID.fullmatch(session):
            raise NotFound
        self.call = Call(
            tenant=self.principal.tenant,
            request_id=self.trace.request_id,
            endpoint=self.trace.endpoint,
            quota=self.principal.quota,
            session=session,
            key=key,
            if_match=None if if_match in (None, "*") else int(if_match.strip('"')),
            after=after,
        )


SessionPath = Annotated[
    str,
    Path(
        alias="session_id",
        description="The id that the server gave the session.",
        json_schema_extra=form(SESSION_ID.pattern),
    ),
]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="Makes a repeat safe: the same key takes effect once and gets the same answer.",
    ),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="if-match",
        pattern=r'^("?[0-9]{1,18}"?|\*)$',
        description="Refuse (412) unless the session is at this version; `*` is any.",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="last-event-id",
        max_length=64,
        description="Of a stream of kept text that broke off: the id of the last event that arrived. The"
        " same request with the same key then streams what comes after it.",
    ),
]


# All of these are coroutines, although they wait for nothing: FastAPI sends a plain function through its
# thread pool, which would cost every request several changes of thread.


async def _plain(request: Request) -> RequestContext:
    return RequestContext(request)


async def _keyed(request: Request, key: KeyHeader = None) -> RequestContext:
    return RequestContext(request, key=key)


async def _asking(request: Request, session: SessionPath) -> RequestContext:
    return RequestContext(request, session)


async def _copying(request: Request, session: SessionPath, key: KeyHeader = None) -> RequestContext:
    return RequestContext(request, session, key=key)


async def _changing(
    request: Request, session: SessionPath, key: KeyHeader = None, if_match: IfMatch = None
) -> RequestContext:
    return RequestContext(request, session, key=key, if_match=if_match)


async def _resuming(
    request: Request,
    session: SessionPath,
    key: KeyHeader = None,
    if_match: IfMatch = None,
    after: LastEventId = None,
) -> RequestContext:
    return RequestContext(request, session, key=key, if_match=if_match, after=after)


async def _snapshot(
    snapshot: Annotated[str, Path(description="The snapshot's name.", json_schema_extra=form(NAME.pattern))],
) -> str:
    if not NAME.fullmatch(snapshot):
        raise NotFound
    return snapshot


MinVersion = Annotated[MinVersionField, Query()]
SnapshotDep = Annotated[str, Depends(_snapshot)]
ContextDep = Annotated[RequestContext, Depends(_plain)]
"""A request of no session."""
KeyedDep = Annotated[RequestContext, Depends(_keyed)]
"""One that makes a session."""
AskingDep = Annotated[RequestContext, Depends(_asking)]
"""One that reads a session."""
CopyingDep = Annotated[RequestContext, Depends(_copying)]
"""One that makes a session of another."""
ChangingDep = Annotated[RequestContext, Depends(_changing)]
"""One that changes a session."""
ResumingDep = Annotated[RequestContext, Depends(_resuming)]
"""One that may go on with a stream that broke off."""

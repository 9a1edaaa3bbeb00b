"""`WS /sessions/{id}/stream`: continuous text, an append a frame, each acknowledged by its number.

Frames are worked on one after the other, and the next is read when the one before is acknowledged: a sender
that is ahead waits in the system's buffers, and none of its text is dropped. A frame's number and the name of
its stream make the append's idempotency key. A sender that lost its connection sends again, on a new one and
to any server, all frames that were not acknowledged: each takes effect once.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

import orjson
from fastapi import APIRouter, Query
from pydantic import Field, RootModel, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from rlstm_server.api import problems
from rlstm_server.api.bodies import INLINE_TOKENS, SCHEMAS, Problem, parse_strictly
from rlstm_server.api.bodies import problems as refusals
from rlstm_server.api.dependencies import AskingDep, RequestContext
from rlstm_server.api.tracing import TRACE
from rlstm_server.engine.requests import off_loop
from rlstm_server.errors import (
    Conflict,
    InFlight,
    InternalError,
    InvalidField,
    InvalidJson,
    Overloaded,
    RateLimited,
    ServerError,
    SlowConsumer,
    UpgradeRequired,
)
from rlstm_server.schemas.sessions import AppendAnswer, AppendRequest, Frame, Name, ScoresField
from rlstm_server.schemas.wire import FLAT, Answer, Strict, UnitField, laid_out

PROTOCOL: Final = "rlstm.v1"
"""The subprotocol that is spoken; the key may come as another one, `bearer.<key>`."""

FRAME_BYTES: Final = 65_536
"""A longer frame ends the connection with code 1009."""

WINDOW: Final = 8
"""Frames that a sender may have under way: the store keeps so many answers whole, for a frame sent again."""

PAUSED: Final = (RateLimited, Overloaded, InFlight, Conflict)
"""What passes by itself: the sender waits, and hears nothing of it."""

PATIENCE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 5.0
SHORTEST_PAUSE_SECONDS: Final = 0.02
REFUSED: Final = 4_000
"""Plus the status of a problem: the code that a connection is closed with after it was told."""


@dataclass(frozen=True, kw_only=True)
class ReadyFrame(Answer):
    """The first frame: the stream is open."""

    type: Literal["ready"] = "ready"
    stream: Annotated[str, Field(description="Its name: frames that are sent again need it.")]
    version: Annotated[int, Field(description="Of the session.")]
    position: Annotated[int, Field(description="Tokens read.")]
    window: Annotated[int, Field(description="Frames that may be under way.")]
    frame_bytes: Annotated[int, Field(description="A longer frame closes the connection, with code 1009.")]


@dataclass(frozen=True, kw_only=True)
class ScoresFrame(Answer):
    """A frame is acknowledged: it was appended, and this is what that did."""

    type: Literal["scores"] = "scores"
    seq: Annotated[int, Field(description="Of the frame.")]
    answer: Annotated[AppendAnswer, FLAT]


@dataclass(frozen=True, kw_only=True)
class ErrorFrame(Answer):
    """Why the connection is closed now, with a code of 4000 plus the status."""

    type: Literal["error"] = "error"
    seq: Annotated[int | None, Field(description="Of the frame that it is about; null for what is no frame.")]
    problem: Problem


class FrameAnswer(RootModel[Annotated[ReadyFrame | ScoresFrame | ErrorFrame, Field(discriminator="type")]]):
    """What the server sends over a WebSocket."""


def frame_schema() -> dict[str, Any]:
    """Document what goes up a connection and what comes down; OpenAPI has no words of its own for it."""
    up, down = Frame.__name__, FrameAnswer.__name__
    return {"x-frames": {"up": {"$ref": SCHEMAS + up}, "down": {"$ref": SCHEMAS + down}}}


class Asked(Strict):
    """What the address says of the stream."""

    stream: Annotated[Name | None, Field(description="Drawn by the sender: frames sent again need it.")] = (
        None
    )
    scores: ScoresField = "tokens"
    unit: UnitField = "nats"


Schema = TypeVar("Schema", bound=Strict)


class TextStream:
    """One connection: reads a frame, appends it, acknowledges it."""

    def __init__(self, socket: WebSocket, context: RequestContext, asked: Asked) -> None:
        self._socket, self._asked, self._context = socket, asked, context
        self._call = context.call
        self._name = asked.stream or secrets.token_hex(16)
        self._trace, self._engine = context.trace, context.engine
        self._last: int | None = None

    async def run(self) -> None:
        """Serve the connection to its end; what went wrong is told before it is closed."""
        info = await self._engine.session_info(self._call)
        await self._socket.accept(PROTOCOL if PROTOCOL in self._socket.scope["subprotocols"] else None)
        self._trace.keyed = True  # a frame may have been sent before
        seq: int | None = None
        try:
            ready = ReadyFrame(
                stream=self._name,
                version=info.version,
                position=info.position,
                window=WINDOW,
                frame_bytes=FRAME_BYTES,
            )
            await self._write(orjson.dumps(laid_out(ready)))
            while True:
                seq = None
                frame = await self._frame()
                seq = frame.seq
                self._check_order(seq)
                await self._acknowledge(seq, await self._append(frame))
        except WebSocketDisconnect:
            return
        except ServerError as error:
            await self._refuse(error, seq)
        except Exception as error:
            self._trace.fault = error
            await self._refuse(InternalError(), seq)

    async def _frame(self) -> Frame:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        if text is None:
            raise InvalidJson("frames are text: one JSON object each")
        return _read(Frame, parse_strictly(text.encode("utf-8", "surrogatepass")))

    def _check_order(self, seq: int) -> None:
        if self._last is not None and seq != self._last + 1:
            raise InvalidField("seq", f"seq: {self._last + 1} comes next, and not {seq}")
        self._last = seq

    async def _append(self, frame: Frame) -> AppendAnswer:
        """Append a frame; what passes by itself is waited for."""
        request = AppendRequest(
            text=frame.text,
            tokens=frame.tokens,
            learn=frame.learn,
            final=frame.final,
            scores=self._asked.scores,
        ).by(replace(self._call, key=f"stream:{self._name}:{frame.seq}"))
        loop = asyncio.get_running_loop()
        patience, pause = loop.time() + PATIENCE_SECONDS, SHORTEST_PAUSE_SECONDS
        while True:
            try:
                if (requests := self._call.quota.requests) is not None:
                    requests.take()
                return await self._engine.append(request)
            except PAUSED as error:
                if loop.time() + pause > patience:
                    raise
                wanted = error.retry_after_seconds if isinstance(error, RateLimited) else None
                await asyncio.sleep(min(wanted or pause, LONGEST_PAUSE_SECONDS))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _acknowledge(self, seq: int, answer: AppendAnswer) -> None:
        self._trace.version = answer.version
        acknowledged = ScoresFrame(seq=seq, answer=answer)
        written = partial(laid_out, acknowledged, self._asked.unit)
        tokens = 0 if answer.columns is None else len(answer.columns.ids)
        await self._write(await off_loop(tokens, lambda: orjson.dumps(written()), INLINE_TOKENS))

    async def _refuse(self, error: ServerError, seq: int | None) -> None:
        """Say what is wrong, of which frame, and close; one whose outcome is open may be sent again."""
        problems.note(error, self._trace)
        document = problems.document(error, self._trace.request_id)
        try:
            await self._write(orjson.dumps({"type": "error", "seq": seq, "problem": document}))
            await self._socket.close(REFUSED + error.status)
        except (WebSocketDisconnect, RuntimeError, ServerError):
            return  # nobody is there any more

    async def _write(self, body: bytes) -> None:
        seconds = self._context.limits.send_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._socket.send_text(body.decode())
        except TimeoutError:
            raise SlowConsumer(f"the reader took nothing for {seconds:g} s") from None


def _read(schema: type[Schema], value: object) -> Schema:
    """Hold a value against a schema. Raises InvalidField, which names the first fault's place."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise problems.invalid_fields(error.errors(include_url=False), schema) from None


routes = APIRouter(prefix="/sessions", tags=["sessions"])


@routes.websocket("/{session_id}/stream")
async def stream(socket: WebSocket) -> None:
    """Take continuous text: frames up, acknowledgements with scores down."""
    try:
        context = RequestContext(socket, socket.path_params["session_id"])
        await TextStream(socket, context, _read(Asked, dict(socket.query_params))).run()
    except ServerError as error:
        await socket.send_denial_response(problems.answer(error, socket.scope[TRACE]))


@routes.get(
    "/{session_id}/stream",
    status_code=101,
    response_model=None,
    response_description="A WebSocket: frames up and down.",
    responses=refusals(404, 410, 422, 426),
    openapi_extra=frame_schema(),
)
async def answer_plainly(context: AskingDep, asked: Annotated[Asked, Query()]) -> NoReturn:
    """Continuous text over a WebSocket of the subprotocol `rlstm.v1`: frames up, acknowledgements down.

    Each frame is appended, the next when the one before is acknowledged. A frame that is sent again under the
    stream's name takes effect once. A page, which sets no headers, gives its key as one more subprotocol,
    `bearer.<key>`. A request that is no WebSocket is refused as that would be, or else with 426: browsers do
    not tell why a WebSocket was refused.
    """
    await context.engine.session_info(context.call)
    raise UpgradeRequired("ask for a WebSocket here; if that was done, a proxy did not pass it on")

"""Continuous text over a WebSocket, for the asyncio client. `streaming` has the same shape."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any

from websockets.asyncio import client as websockets
from websockets.asyncio.client import ClientConnection

from rlstm_client import _sockets
from rlstm_client._frames import FRAME_BYTES, WINDOW, Frames
from rlstm_client._pieces import PieceBuffer, telling
from rlstm_client.async_connection import AsyncConnection, each
from rlstm_client.errors import RLSTMError
from rlstm_client.models import AppendResult

_connect = _sockets.direct(websockets.connect)


class AsyncTextStream(AsyncIterator[AppendResult]):
    """Sends texts as they come, from a task of its own, and yields the answer to each frame.

    After a cut it goes on over a new connection; every frame takes effect once. Close it, or leave its
    ``async with`` block, to end it early: frames that are under way may still take effect.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        session_id: str,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        final: bool,
        **options: Any,
    ) -> None:
        self._connection = connection
        self._frames = Frames(session_id, **options)
        self._silence = _sockets.Silence(connection._http)
        self._texts = texts
        self._final = final
        self._room = asyncio.Semaphore(WINDOW)
        self._lock = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._sending_over = False
        self._fault: BaseException | None = None
        self._answers = self._run()

    def __aiter__(self) -> "AsyncTextStream":
        return self

    async def __anext__(self) -> AppendResult:
        return await anext(self._answers)

    async def __aenter__(self) -> "AsyncTextStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream."""
        await self._answers.aclose()

    # ---- what the reader does -----------------------------------------------------------------------------

    async def _run(self) -> AsyncGenerator[AppendResult, None]:
        attempt = 1
        feeder: asyncio.Task[None] | None = None
        try:
            with telling(self._frames.progress):
                await self._open(attempt)
                feeder = asyncio.ensure_future(self._feed())
                while not self._is_over():
                    try:
                        answer = await self._receive()
                    except RLSTMError as error:
                        await self._wait(error, attempt)
                        attempt += 1
                        await self._open(attempt)
                        continue
                    if answer is not None:
                        attempt = 1
                        self._room.release()
                        yield answer
                if self._fault is not None:
                    raise self._fault
        finally:
            if feeder is not None:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
            if self._socket is not None:
                await self._socket.close()

    def _is_over(self) -> bool:
        return self._sending_over and not self._frames.unacknowledged

    async def _receive(self) -> AppendResult | None:
        if self._socket is None:
            raise RuntimeError("the stream has no connection")
        try:
            async with asyncio.timeout(self._silence.seconds):
                message = await self._socket.recv()
        except TimeoutError:
            self._silence.check(self._frames.call, under_way=bool(self._frames.unacknowledged))
            return None
        except _sockets.FAILURES as error:
            if self._is_over():
                return None
            raise self._failure(error) from error
        self._silence.end()
        return self._frames.take(message)

    def _failure(self, error: Exception) -> RLSTMError:
        return _sockets.failure(error, self._frames.call, under_way=bool(self._frames.unacknowledged))

    async def _open(self, attempt: int) -> None:
        """Connect, again where that can help, and send what was not acknowledged."""
        while True:
            try:
                await self._connect()
            except _sockets.FAILURES as error:
                await self._wait(self._failure(error), attempt)
                attempt += 1
            else:
                return

    async def _connect(self) -> None:
        async with self._lock:
            if self._socket is not None:
                await self._socket.close()
            self._socket = await _connect(**_sockets.arguments(self._connection._http, self._frames.call))
            self._silence.end()
            for frame in self._frames.unacknowledged:
                await self._socket.send(frame)

    async def _wait(self, error: RLSTMError, attempt: int) -> None:
        await self._connection._pause(self._frames.call, error, attempt)

    # ---- what the sender does -----------------------------------------------------------------------------

    async def _feed(self) -> None:
        buffer = PieceBuffer(1, hold_last=self._final, piece_bytes=FRAME_BYTES)
        try:
            async for text in each(self._texts):
                for piece in buffer.feed(text):
                    await self._send(piece)
            for piece, last in buffer.finish():
                await self._send(piece, final=self._final and last)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised where the answers are read
            self._fault = error
        async with self._lock:
            self._sending_over = True
            if not self._frames.unacknowledged and self._socket is not None:
                await self._socket.close()  # the reader waits for an answer that will not come

    async def _send(self, piece: str, *, final: bool = False) -> None:
        await self._room.acquire()
        async with self._lock:
            if not self._frames.unacknowledged:
                self._silence.end()
            frame = self._frames.make(piece, final=final)
            if self._socket is not None:
                try:
                    await self._socket.send(frame)
                except Exception:  # the reader notices, and sends it again
                    await self._socket.close()

"""Continuous text over a WebSocket, for the blocking client. `async_streaming` has the same shape."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from websockets.sync import client as websockets
from websockets.sync.client import ClientConnection

from rlstm_client import _sockets
from rlstm_client._frames import FRAME_BYTES, WINDOW, Frames
from rlstm_client._pieces import PieceBuffer, telling
from rlstm_client.connection import Connection
from rlstm_client.errors import RLSTMError
from rlstm_client.models import AppendResult

_connect = _sockets.direct(getattr(websockets, "reconnect", websockets.connect))


class TextStream(Iterator[AppendResult]):
    """Sends texts as they come, from a thread of its own, and yields the answer to each frame.

    After a cut it goes on over a new connection; every frame takes effect once. Close it, or leave its
    ``with`` block, to end it early: frames that are under way may still take effect.
    """

    def __init__(
        self, connection: Connection, session_id: str, texts: Iterable[str], *, final: bool, **options: Any
    ) -> None:
        self._connection = connection
        self._frames = Frames(session_id, **options)
        self._silence = _sockets.Silence(connection._http)
        self._texts = texts
        self._final = final
        self._room = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()
        self._socket: ClientConnection | None = None
        self._sending_over = self._closed = False
        self._fault: BaseException | None = None
        self._answers = self._run()

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> AppendResult:
        return next(self._answers)

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._room.release()
        self._answers.close()  # type: ignore[attr-defined]

    # ---- what the reader does -----------------------------------------------------------------------------

    def _run(self) -> Iterator[AppendResult]:
        attempt = 1
        try:
            with telling(self._frames.progress):
                self._open(attempt)
                threading.Thread(target=self._feed, name="rlstm-stream", daemon=True).start()
                while not self._is_over():
                    try:
                        answer = self._receive()
                    except RLSTMError as error:
                        self._wait(error, attempt)
                        attempt += 1
                        self._open(attempt)
                        continue
                    if answer is not None:
                        attempt = 1
                        self._room.release()
                        yield answer
                if self._fault is not None:
                    raise self._fault
        finally:
            self._closed = True
            self._room.release()
            if self._socket is not None:
                self._socket.close()

    def _is_over(self) -> bool:
        with self._lock:
            return self._sending_over and not self._frames.unacknowledged

    def _receive(self) -> AppendResult | None:
        if self._socket is None:
            raise RuntimeError("the stream has no connection")
        try:
            message = self._socket.recv(self._silence.seconds)
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

    def _open(self, attempt: int) -> None:
        """Connect, again where that can help, and send what was not acknowledged."""
        while True:
            try:
                self._connect()
            except _sockets.FAILURES as error:
                self._wait(self._failure(error), attempt)
                attempt += 1
            else:
                return

    def _connect(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            arguments = _sockets.arguments(self._connection._http, self._frames.call)
            self._socket = _connect(**arguments).__enter__()
            self._silence.end()
            for frame in self._frames.unacknowledged:
                self._socket.send(frame)

    def _wait(self, error: RLSTMError, attempt: int) -> None:
        self._connection._pause(self._frames.call, error, attempt)

    # ---- what the sender does -----------------------------------------------------------------------------

    def _feed(self) -> None:
        buffer = PieceBuffer(1, hold_last=self._final, piece_bytes=FRAME_BYTES)
        try:
            for text in self._texts:
                for piece in buffer.feed(text):
                    self._send(piece)
                if self._closed:
                    return
            for piece, last in buffer.finish():
                self._send(piece, final=self._final and last)
        except BaseException as error:  # raised where the answers are read
            self._fault = error
        with self._lock:
            self._sending_over = True
            if not self._frames.unacknowledged and self._socket is not None:
                self._socket.close()  # the reader waits for an answer that will not come

    def _send(self, piece: str, *, final: bool = False) -> None:
        self._room.acquire()
        with self._lock:
            if self._closed:
                self._room.release()  # for the next piece, which shall not wait either
                return
            if not self._frames.unacknowledged:
                self._silence.end()
            frame = self._frames.make(piece, final=final)
            if self._socket is not None:
                try:
                    self._socket.send(frame)
                except Exception:  # the reader notices, and sends it again
                    self._socket.close()

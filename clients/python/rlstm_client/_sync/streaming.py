# Written by unasync.py from _async/streaming.py. Do not edit.
"""Continuous text over a WebSocket, for the blocking client."""

import sys
import threading
from collections.abc import Generator, Iterable
from typing import Any

from rlstm_client import _http, _sockets
from rlstm_client._appends import FRAME_BYTES, WINDOW, Frames, cut, telling
from rlstm_client._sockets import Feeder, Socket
from rlstm_client._sync.connection import Connection, Stream
from rlstm_client.errors import RLSTMError, TimedOutError
from rlstm_client.models import AppendResult


class TextStream(Stream[AppendResult]):
    """Sends texts as they come, beside what iterates over the answers: one to each frame.

    After a cut it goes on over a new connection; every frame takes effect once. Close it, leave its
    ``with`` block, or let it go, to end it early: frames that are under way may still take effect.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        texts: Iterable[str],
        *,
        final: bool,
        **options: Any,
    ) -> None:
        self._exchange = _Exchange(connection, Frames(session_id, **options), texts, final)
        self._answers = self._exchange.answers()

    def close(self) -> None:
        """End the stream."""
        self._exchange.leave()
        super().close()


class _Exchange:
    """What reads and what sends share. Nothing in it holds the stream, so that one that is let go ends."""

    def __init__(
        self,
        connection: Connection,
        frames: Frames,
        texts: Iterable[str],
        final: bool,
    ) -> None:
        self._connection = connection
        self._frames = frames
        self._texts = texts
        self._final = final
        self._room = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()
        self._socket: Socket | None = None
        self._sending_over = self._left = False
        self._fault: BaseException | None = None

    def leave(self) -> None:
        """Have nothing more sent."""
        self._left = True
        self._room.release()

    # ---- what reads ---------------------------------------------------------------------------------------

    def answers(self) -> Generator[AppendResult, None, None]:
        """Connect, have the texts sent, and yield the answers."""
        attempt = 1
        feeder: Feeder | None = None
        try:
            with telling(self._frames.progress):
                self._open(attempt)
                feeder = Feeder(self._feed)
                while not self._is_over():
                    try:
                        answer = self._receive()
                    except RLSTMError as error:
                        self._connection._pause(self._frames.call, error, attempt)
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
            if not sys.is_finalizing():  # else threads are stopped where they are, and none is waited for
                self.leave()
                if feeder is not None:
                    feeder.stop()
                if self._socket is not None:
                    self._socket.close()

    def _is_over(self) -> bool:
        return self._sending_over and not self._frames.unacknowledged

    def _receive(self) -> AppendResult | None:
        if self._socket is None:
            raise RuntimeError("the stream has no connection")
        owed, seconds = bool(self._frames.unacknowledged), self._connection._timeout
        try:
            return self._frames.take(self._socket.recv(seconds))
        except TimeoutError as error:
            if owed:
                late = f"no answer in {seconds} seconds"
                raise TimedOutError(
                    late, applied="unknown", request_id=self._frames.call.request_id
                ) from error
        except _sockets.FAILURES as error:
            if not self._is_over():
                raise self._failure(error) from error
        return None

    def _failure(self, error: Exception) -> RLSTMError:
        return _sockets.failure(error, self._frames.call, under_way=bool(self._frames.unacknowledged))

    def _open(self, attempt: int) -> None:
        """Connect, again where that can help, and send what was not acknowledged."""
        while True:
            try:
                self._connect()
            except _sockets.FAILURES as error:
                self._connection._pause(self._frames.call, self._failure(error), attempt)
                attempt += 1
            else:
                return

    def _connect(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            where = _http.websocket(self._connection._http, self._frames.call)
            self._socket = _sockets.connect_sync(where)
            for frame in self._frames.unacknowledged:
                self._socket.send(frame)

    # ---- what sends ---------------------------------------------------------------------------------------

    def _feed(self) -> None:
        held = ""  # the newest piece of a text that has an end, where it is marked
        try:
            for text in self._texts:
                for piece in cut(text, FRAME_BYTES):
                    if self._final and piece:
                        piece, held = held, piece
                    if piece:
                        self._send(piece)
                if self._left:
                    return
            if held:
                self._send(held, final=True)
        except BaseException as error:  # raised where the answers are read
            self._fault = error
        with self._lock:
            self._sending_over = True
            if not self._frames.unacknowledged and self._socket is not None:
                self._socket.close()  # what reads waits for an answer that will not come

    def _send(self, piece: str, *, final: bool = False) -> None:
        self._room.acquire()
        with self._lock:
            if self._left:
                self._room.release()  # for the next piece, which shall not wait either
                return
            frame = self._frames.make(piece, final=final)
            if self._socket is not None:
                try:
                    self._socket.send(frame)
                except Exception:  # what reads notices, and sends it again
                    self._socket.close()

# Written by unasync.py from _async/connection.py. Do not edit.
"""What carries the calls of the blocking client: sent again where that is safe."""

import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from rlstm_client import _http
from rlstm_client._calls import DEFAULT_RETRIES, EVENTS, OCTETS, Call, Retries, still_open
from rlstm_client._events import EventReader
from rlstm_client._http import ArrivingFile
from rlstm_client.errors import RLSTMError
from rlstm_client.models import Event

T = TypeVar("T")


class Connection:
    """Sends calls to one server.

    url        where the server is; it may end in a path
    api_key    sent as a bearer token
    timeout    seconds without a sign of the server; the default waits long, since learning takes its time
    retries    how often a call is repeated; what could be done twice never is
    transport  carries requests in place of the network, for tests: one of the HTTP library's
    sleep, chance    the clock and the random source of the waits between attempts

    Every method raises an `RLSTMError`; the module `errors` draws the tree.
    """

    def __init__(
        self,
        url: str = _http.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | None = _http.DEFAULT_TIMEOUT,
        retries: Retries = DEFAULT_RETRIES,
        transport: Any = None,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._http = _http.make(_http.HTTP, url, api_key, timeout, transport)
        self._timeout = timeout
        self._retries = retries
        self._sleep = sleep
        self._chance = chance

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        """Send a call and return its typed answer."""
        return self._repeated(call, partial(self._exchange, call))

    def _download(self, call: Call[Any], file: ArrivingFile) -> None:
        """Send a call and write its answer as it comes; what had come before a repeat is dropped."""

        def fetch() -> None:
            file.restart()
            with self._opened(call, OCTETS) as response:
                for chunk in response.iter_bytes():
                    file.partial.write(chunk)

        self._repeated(call, fetch)

    def _repeated(self, call: Call[Any], work: Callable[[], T]) -> T:
        """Do what a call asks for, again where that is safe."""
        attempt, is_open = 1, False
        while True:
            try:
                return work()
            except RLSTMError as error:
                is_open = still_open(error, is_open)
                self._pause(call, error, attempt)
            attempt += 1

    def _pause(self, call: Call[Any], error: RLSTMError, attempt: int) -> None:
        """Wait before the next attempt; raise the error when there is none."""
        wait = self._retries.wait(call, error, attempt, self._chance())
        if wait is None:
            raise error
        self._sleep(wait)

    def _exchange(self, call: Call[T]) -> T:
        try:
            response = self._http.send(_http.request(self._http, call))
        except _http.FAILURES as error:
            raise _http.no_answer(error, call, self._http) from error
        return _http.answer(call, response)

    @contextmanager
    def _opened(self, call: Call[Any], media_type: str) -> Iterator[_http.Response]:
        """Send a call, and give the answer that is still to be read."""
        try:
            with closing(self._http.send(_http.request(self._http, call), stream=True)) as response:
                if not _http.is_stream(response, media_type):
                    response.read()
                    raise _http.no_stream(call, response, media_type)
                yield response
        except _http.FAILURES as error:
            raise _http.no_answer(error, call, self._http) from error


class Stream(Iterator[T]):
    """Answers as they come. Close it, or leave its ``with`` block, to end it early."""

    _answers: Generator[T, None, None]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream; what the server is at work on may still take effect."""
        self._answers.close()


class EventStream(Stream[Event]):
    """The events of one generation, which begins with the first and ends early where this is closed."""

    def __init__(self, connection: Connection, call: Call[Any]) -> None:
        self._answers = _read(connection, EventReader(call))


def _read(connection: Connection, reader: EventReader) -> Generator[Event, None, None]:
    attempt = 1
    while True:
        try:
            with connection._opened(reader.call, EVENTS) as response:
                for sent in _http.EventSource(response).iter_sse():
                    if (event := reader.take(sent)) is not None:
                        attempt = 1
                        yield event
            reader.finish()
            return
        except RLSTMError as error:
            if reader.complete:
                return
            if not reader.goes_on:
                raise
            connection._pause(reader.call, error, attempt)
        attempt += 1

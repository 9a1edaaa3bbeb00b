"""What carries the calls of the blocking client. `async_connection` has the same shape, word for word."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import httpx

from rlstm_client import _http
from rlstm_client._call import EVENTS, OCTETS, Call, answer
from rlstm_client._events import EventReader
from rlstm_client._retries import Retries, still_open
from rlstm_client.errors import RLSTMError
from rlstm_client.models import Event

T = TypeVar("T")


class Connection:
    """Sends calls to one server, again where that is safe. The arguments are those of `Client`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float | httpx.Timeout,
        retries: Retries,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
        chance: Callable[[], float],
    ) -> None:
        self._http = httpx.Client(**_http.settings(url, api_key, timeout), transport=transport)
        self._retries = retries
        self._sleep = sleep
        self._chance = chance

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Send a call and return its typed answer."""
        attempt, doubt = 1, False
        while True:
            try:
                return self._exchange(call)
            except RLSTMError as error:
                doubt = still_open(error, doubt)
                self._pause(call, error, attempt)
            attempt += 1

    def download(self, call: Call[Any], to: IO[bytes]) -> None:
        """Send a call and write its answer, a file, as it comes; what had come before a repeat is dropped."""
        attempt = 1
        while True:
            to.seek(0)
            to.truncate()
            try:
                with closing(self._chunks(call, OCTETS)) as chunks:
                    for chunk in chunks:
                        to.write(chunk)
                return
            except RLSTMError as error:
                self._pause(call, error, attempt)
            attempt += 1

    def stream(self, call: Call[Any]) -> "EventStream":
        """Send a call and return its events.

        It is repeated while no event has come, and afterwards goes on where the server keeps the text.
        """
        events = EventStream(self, call)
        events._begin()
        return events

    def _pause(self, call: Call[Any], error: RLSTMError, attempt: int) -> None:
        """Wait before the next attempt; raise the error when there is none."""
        wait = self._retries.wait(call, error, attempt, self._chance())
        if wait is None:
            raise error
        self._sleep(wait)

    def _exchange(self, call: Call[T]) -> T:
        try:
            response = self._http.request(**_http.arguments(call))
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        return answer(call, _http.reply(response))

    def _open(self, call: Call[Any], media_type: str) -> httpx.Response:
        try:
            response = self._http.send(self._http.build_request(**_http.arguments(call)), stream=True)
            streams = _http.is_stream(response, media_type)
            if not streams:
                response.read()
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        if not streams:
            raise _http.no_stream(call, _http.reply(response), media_type)
        return response

    def _chunks(self, call: Call[Any], media_type: str) -> Generator[bytes, None, None]:
        """Send a call and yield the bytes of its stream as they come."""
        response = self._open(call, media_type)
        try:
            yield from response.iter_bytes()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _http.no_answer(error, call, response.url) from error
        finally:
            response.close()


class EventStream(Iterator[Event]):
    """The events of one generation. Close it, or leave its ``with`` block, to end the generation early."""

    def __init__(self, connection: Connection, call: Call[Any]) -> None:
        self._connection = connection
        self._events = self._read(EventReader(call))
        self._first: Event | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        first, self._first = self._first, None
        return first if first is not None else next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the server then stops."""
        self._first = None
        self._events.close()

    def _begin(self) -> None:
        """Wait for the first event: what is refused is refused at once."""
        self._first = next(self._events)

    def _read(self, reader: EventReader) -> Generator[Event, None, None]:
        attempt = 1
        while True:
            reader.reconnected()
            try:
                with closing(self._connection._chunks(reader.call, EVENTS)) as chunks:
                    for chunk in chunks:
                        for event in reader.feed(chunk):
                            attempt = 1
                            yield event
                reader.finish()
                return
            except RLSTMError as error:
                if reader.complete:
                    return
                if not reader.goes_on:
                    raise
                self._connection._pause(reader.call, error, attempt)
            attempt += 1

"""What carries the calls of the blocking client. `async_connection` has the same shape, word for word."""

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from rlstm_client import _http
from rlstm_client._call import Call, answer
from rlstm_client._events import EventReader
from rlstm_client._retries import Retries
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
        return self._repeated(call, lambda: self._exchange(call))

    def stream(self, call: Call[Any]) -> "EventStream":
        """Send a call and return its events; it is repeated only while no event has come."""
        return self._repeated(call, lambda: self._open(call))

    def _repeated(self, call: Call[Any], act: Callable[[], T]) -> T:
        attempt = 1
        while True:
            try:
                return act()
            except RLSTMError as error:
                wait = self._retries.wait(call, error, attempt, self._chance())
                if wait is None:
                    raise
            self._sleep(wait)
            attempt += 1

    def _exchange(self, call: Call[T]) -> T:
        try:
            response = self._http.request(**_http.arguments(call))
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        return answer(call, _http.reply(response))

    def _open(self, call: Call[Any]) -> "EventStream":
        try:
            response = self._http.send(self._http.build_request(**_http.arguments(call)), stream=True)
            streams = _http.is_event_stream(response)
            if not streams:
                response.read()
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        if not streams:
            raise _http.no_stream(call, _http.reply(response))
        events = EventStream(response, call)
        events._begin()
        return events


class EventStream(Iterator[Event]):
    """The events of one generation. Close it, or leave its ``with`` block, to end the generation early."""

    def __init__(self, response: httpx.Response, call: Call[Any]) -> None:
        self._response = response
        self._events = self._read(call)
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
        """Wait for the first event: until it is here, the connection may send the call again."""
        self._first = next(self._events)

    def _read(self, call: Call[Any]) -> Generator[Event, None, None]:
        reader = EventReader(call.request_id, call.choices)
        try:
            for chunk in self._response.iter_bytes():
                yield from reader.feed(chunk)
            reader.finish()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _http.no_answer(error, call, self._response.url) from error
        finally:
            self._response.close()

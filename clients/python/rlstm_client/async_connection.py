"""What carries the calls of the asyncio client. `connection` has the same shape, word for word."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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


class AsyncConnection:
    """Sends calls to one server, again where that is safe. The arguments are those of `AsyncClient`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float | httpx.Timeout,
        retries: Retries,
        transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[object]],
        chance: Callable[[], float],
    ) -> None:
        self._http = httpx.AsyncClient(**_http.settings(url, api_key, timeout), transport=transport)
        self._retries = retries
        self._sleep = sleep
        self._chance = chance

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Send a call and return its typed answer."""
        return await self._repeated(call, lambda: self._exchange(call))

    async def stream(self, call: Call[Any]) -> "AsyncEventStream":
        """Send a call and return its events; it is repeated only while no event has come."""
        return await self._repeated(call, lambda: self._open(call))

    async def _repeated(self, call: Call[Any], act: Callable[[], Awaitable[T]]) -> T:
        attempt = 1
        while True:
            try:
                return await act()
            except RLSTMError as error:
                wait = self._retries.wait(call, error, attempt, self._chance())
                if wait is None:
                    raise
            await self._sleep(wait)
            attempt += 1

    async def _exchange(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(**_http.arguments(call))
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        return answer(call, _http.reply(response))

    async def _open(self, call: Call[Any]) -> "AsyncEventStream":
        try:
            response = await self._http.send(self._http.build_request(**_http.arguments(call)), stream=True)
            streams = _http.is_event_stream(response)
            if not streams:
                await response.aread()
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        if not streams:
            raise _http.no_stream(call, _http.reply(response))
        events = AsyncEventStream(response, call)
        await events._begin()
        return events


class AsyncEventStream(AsyncIterator[Event]):
    """The events of one generation. Close it, or leave its ``async with``, to end the generation early."""

    def __init__(self, response: httpx.Response, call: Call[Any]) -> None:
        self._response = response
        self._events = self._read(call)
        self._first: Event | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the server then stops."""
        self._first = None
        await self._events.aclose()

    async def _begin(self) -> None:
        """Wait for the first event: until it is here, the connection may send the call again."""
        self._first = await anext(self._events)

    async def _read(self, call: Call[Any]) -> AsyncGenerator[Event, None]:
        reader = EventReader(call.request_id, call.choices)
        try:
            async for chunk in self._response.aiter_bytes():
                for event in reader.feed(chunk):
                    yield event
            reader.finish()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _http.no_answer(error, call, self._response.url) from error
        finally:
            await self._response.aclose()

"""What carries the calls of the asyncio client. `connection` has the same shape, word for word."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
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
        attempt, doubt = 1, False
        while True:
            try:
                return await self._exchange(call)
            except RLSTMError as error:
                doubt = still_open(error, doubt)
                await self._pause(call, error, attempt)
            attempt += 1

    async def download(self, call: Call[Any], to: IO[bytes]) -> None:
        """Send a call and write its answer, a file, as it comes; what had come before a repeat is dropped."""
        attempt = 1
        while True:
            to.seek(0)
            to.truncate()
            try:
                async with aclosing(self._chunks(call, OCTETS)) as chunks:
                    async for chunk in chunks:
                        await asyncio.to_thread(to.write, chunk)
                return
            except RLSTMError as error:
                await self._pause(call, error, attempt)
            attempt += 1

    async def stream(self, call: Call[Any]) -> "AsyncEventStream":
        """Send a call and return its events.

        It is repeated while no event has come, and afterwards goes on where the server keeps the text.
        """
        events = AsyncEventStream(self, call)
        await events._begin()
        return events

    async def _pause(self, call: Call[Any], error: RLSTMError, attempt: int) -> None:
        """Wait before the next attempt; raise the error when there is none."""
        wait = self._retries.wait(call, error, attempt, self._chance())
        if wait is None:
            raise error
        await self._sleep(wait)

    async def _exchange(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(**_http.arguments(call))
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        return answer(call, _http.reply(response))

    async def _open(self, call: Call[Any], media_type: str) -> httpx.Response:
        try:
            response = await self._http.send(self._http.build_request(**_http.arguments(call)), stream=True)
            streams = _http.is_stream(response, media_type)
            if not streams:
                await response.aread()
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call, self._http.base_url) from error
        if not streams:
            raise _http.no_stream(call, _http.reply(response), media_type)
        return response

    async def _chunks(self, call: Call[Any], media_type: str) -> AsyncGenerator[bytes, None]:
        """Send a call and yield the bytes of its stream as they come."""
        response = await self._open(call, media_type)
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _http.no_answer(error, call, response.url) from error
        finally:
            await response.aclose()


class AsyncEventStream(AsyncIterator[Event]):
    """The events of one generation. Close it, or leave its ``async with``, to end the generation early."""

    def __init__(self, connection: AsyncConnection, call: Call[Any]) -> None:
        self._connection = connection
        self._events = self._read(EventReader(call))
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
        """Wait for the first event: what is refused is refused at once."""
        self._first = await anext(self._events)

    async def _read(self, reader: EventReader) -> AsyncGenerator[Event, None]:
        attempt = 1
        while True:
            reader.reconnected()
            try:
                async with aclosing(self._connection._chunks(reader.call, EVENTS)) as chunks:
                    async for chunk in chunks:
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
                await self._connection._pause(reader.call, error, attempt)
            attempt += 1


async def each(texts: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    """Iterate over texts of either kind."""
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text

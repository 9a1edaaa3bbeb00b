"""What carries the calls of the asyncio client: sent again where that is safe."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from rlstm_client import _http
from rlstm_client._calls import DEFAULT_RETRIES, EVENTS, OCTETS, Call, Retries, still_open
from rlstm_client._events import EventReader
from rlstm_client._http import ArrivingFile
from rlstm_client.errors import RLSTMError
from rlstm_client.models import Event

T = TypeVar("T")


class AsyncConnection:
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
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._http = _http.make(_http.AsyncHTTP, url, api_key, timeout, transport)
        self._timeout = timeout
        self._retries = retries
        self._sleep = sleep
        self._chance = chance

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        """Send a call and return its typed answer."""
        return await self._repeated(call, partial(self._exchange, call))

    async def _download(self, call: Call[Any], file: ArrivingFile) -> None:
        """Send a call and write its answer as it comes; what had come before a repeat is dropped."""

        async def fetch() -> None:
            file.restart()
            async with self._opened(call, OCTETS) as response:
                async for chunk in response.aiter_bytes():
                    await asyncio.to_thread(file.partial.write, chunk)

        await self._repeated(call, fetch)

    async def _repeated(self, call: Call[Any], work: Callable[[], Awaitable[T]]) -> T:
        """Do what a call asks for, again where that is safe."""
        attempt, is_open = 1, False
        while True:
            try:
                return await work()
            except RLSTMError as error:
                is_open = still_open(error, is_open)
                await self._pause(call, error, attempt)
            attempt += 1

    async def _pause(self, call: Call[Any], error: RLSTMError, attempt: int) -> None:
        """Wait before the next attempt; raise the error when there is none."""
        wait = self._retries.wait(call, error, attempt, self._chance())
        if wait is None:
            raise error
        await self._sleep(wait)

    async def _exchange(self, call: Call[T]) -> T:
        try:
            response = await self._http.send(_http.request(self._http, call))
        except _http.FAILURES as error:
            raise _http.no_answer(error, call, self._http) from error
        return _http.answer(call, response)

    @asynccontextmanager
    async def _opened(self, call: Call[Any], media_type: str) -> AsyncIterator[_http.Response]:
        """Send a call, and give the answer that is still to be read."""
        try:
            async with aclosing(
                await self._http.send(_http.request(self._http, call), stream=True)
            ) as response:
                if not _http.is_stream(response, media_type):
                    await response.aread()
                    raise _http.no_stream(call, response, media_type)
                yield response
        except _http.FAILURES as error:
            raise _http.no_answer(error, call, self._http) from error


class AsyncStream(AsyncIterator[T]):
    """Answers as they come. Close it, or leave its ``async with`` block, to end it early."""

    _answers: AsyncGenerator[T, None]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._answers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream; what the server is at work on may still take effect."""
        await self._answers.aclose()


class AsyncEventStream(AsyncStream[Event]):
    """The events of one generation, which begins with the first and ends early where this is closed."""

    def __init__(self, connection: AsyncConnection, call: Call[Any]) -> None:
        self._answers = _read(connection, EventReader(call))


async def _read(connection: AsyncConnection, reader: EventReader) -> AsyncGenerator[Event, None]:
    attempt = 1
    while True:
        try:
            async with connection._opened(reader.call, EVENTS) as response:
                async for sent in _http.EventSource(response).aiter_sse():
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
            await connection._pause(reader.call, error, attempt)
        attempt += 1


async def each(texts: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    """Iterate over texts of either kind."""
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text

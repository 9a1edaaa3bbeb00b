"""The asyncio client. `client` has the same shape, word for word."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, overload

import httpx

from rlstm_client import _http, _wire
from rlstm_client._retries import DEFAULT_RETRIES, Retries
from rlstm_client.async_connection import AsyncConnection, AsyncEventStream
from rlstm_client.async_sessions import AsyncSessions
from rlstm_client.models import Generation, Health, ScoreResult, ServerInfo, TokenizerInfo
from rlstm_client.options import GenerateOptions, ScoreOptions


class AsyncClient:
    """Talks to one server.

        async with AsyncClient("http://127.0.0.1:8000") as client:
            print((await client.score("a text")).items[0].totals.bits_per_byte)

    url        where the server is; it may end in a path
    api_key    sent as a bearer token
    timeout    seconds, or an `httpx.Timeout`; the default waits long, since learning takes its time
    retries    how often a call is repeated; what could be done twice never is
    transport  an httpx transport, for tests and for special networks
    sleep, chance    the clock and the random source of the waits between attempts

    Every method raises an `RLSTMError`; the module `errors` draws the tree.
    """

    def __init__(
        self,
        url: str = _http.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | httpx.Timeout = _http.DEFAULT_TIMEOUT,
        retries: Retries = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._connection = AsyncConnection(
            url,
            api_key=api_key,
            timeout=timeout,
            retries=retries,
            transport=transport,
            sleep=sleep,
            chance=chance,
        )
        self.sessions = AsyncSessions(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def score(self, text: str | None = None, **options: Unpack[ScoreOptions]) -> ScoreResult:
        """Return the log-probability of every token of a text, of ids, or of up to 256 items."""
        return await self._connection.send(_wire.score(text, **options))

    @overload
    async def generate(
        self, prompt: str | None = None, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self, prompt: str | None = None, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> AsyncEventStream: ...
    async def generate(
        self, prompt: str | None = None, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Generation | AsyncEventStream:
        """Continue a prompt; with ``stream=True`` return its events as they come."""
        call = _wire.generate(prompt, stream=stream, **options)
        if stream:
            return await self._connection.stream(call)
        return await self._connection.send(call)

    async def tokenize(
        self, prompt: str, *, model: str | None = None, add_special_tokens: bool | None = None
    ) -> Sequence[int]:
        """Return a text's ids."""
        call = _wire.tokenize(prompt, model=model, add_special_tokens=add_special_tokens)
        return await self._connection.send(call)

    async def detokenize(self, tokens: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of ids; those that are no whole text are an `UnprocessableError`."""
        return await self._connection.send(_wire.detokenize(tokens, model=model))

    async def tokenizer_info(self, *, model: str | None = None) -> TokenizerInfo:
        """Return what is to be known of the vocabulary."""
        return await self._connection.send(_wire.tokenizer_info(model=model))

    async def info(self) -> ServerInfo:
        """Return the model card, limits and defaults."""
        return await self._connection.send(_wire.info())

    async def live(self) -> Health:
        """Return if the process answers."""
        return await self._connection.send(_wire.live())

    async def ready(self) -> Health:
        """Return if the server takes work; one that does not is an `UnavailableError`."""
        return await self._connection.send(_wire.ready())

    async def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return await self._connection.send(_wire.metrics())

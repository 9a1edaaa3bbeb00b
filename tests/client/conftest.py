"""The real application on a port, a network that loses what it is told to, and both clients as one."""

import asyncio
import inspect
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from rlstm_client import AsyncClient, Client, Retries
from rlstm_server.app import create_app
from rlstm_server.settings import Settings

Forward = Callable[[], httpx.Response]
Fault = Callable[[httpx.Request, Forward], httpx.Response]


@pytest.fixture(scope="session")
def url(tiny_checkpoint: Any) -> Iterator[str]:
    """The address of the real application, with a small model and a store that no file keeps."""
    app = create_app(Settings(model=str(tiny_checkpoint), durability="memory"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


class Network(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """What lies between a client and the server. ``faults`` are used up, one a request."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.faults: deque[Fault] = deque()
        self._blocking = httpx.HTTPTransport()

    def lose(self, what: str, times: int = 1) -> None:
        """Break the connection of the next requests: before it is seen, or (``answer``) after it was done."""

        def lost(request: httpx.Request, forward: Forward) -> httpx.Response:
            if what == "answer":
                forward().read()
            raise httpx.ReadError("the connection was cut")

        self.faults.extend([lost] * times)

    def let_pass(self, times: int = 1) -> None:
        """Pass the next requests on."""
        self.faults.extend([lambda _, forward: forward()] * times)

    def answer(self, *responses: httpx.Response) -> None:
        """Answer the next requests in the server's place."""
        self.faults.extend(lambda *_, response=response: response for response in responses)

    def refuse(self, status: int, slug: str, *, retry_after: float | None = None, **facts: Any) -> None:
        """Refuse the next request with this problem."""
        named = {"type": f"urn:rlstm:problem:{slug}", "status": status, "detail": f"refused: {slug}"}
        headers = {"content-type": "application/problem+json"}
        if retry_after is not None:
            headers["retry-after"] = str(retry_after)
        content = json.dumps({**named, "applied": "no", **facts}).encode()
        self.answer(httpx.Response(status, headers=headers, content=content))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on, or do what the next fault says."""
        request.read()
        self.requests.append(request)
        if self.faults:
            return self.faults.popleft()(request, lambda: self._blocking.handle_request(request))
        return self._blocking.handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Do the same, in a thread: nothing of this is the client's."""
        await request.aread()
        response = await asyncio.to_thread(self.handle_request, request)
        if not isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = Parts(response.stream)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._blocking.close()

    async def aclose(self) -> None:
        """Close the connections."""
        self.close()

    @property
    def keys(self) -> list[str]:
        """The keys of the appends that were sent."""
        return [r.headers["idempotency-key"] for r in self.requests if r.url.path.endswith("/append")]


class Parts(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in parts, and may break off."""

    def __init__(self, parts: Any, *, cut: bool = False) -> None:
        self._parts, self._cut = parts, cut

    def __iter__(self) -> Iterator[bytes]:
        """Give the parts."""
        yield from self._parts
        if self._cut:
            raise httpx.ReadError("the connection was cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the parts."""
        for part in self:
            yield part

    def close(self) -> None:
        """Close what is behind."""
        getattr(self._parts, "close", lambda: None)()

    async def aclose(self) -> None:
        """Close what is behind."""
        self.close()


class Driven:
    """An asynchronous object whose methods block, so that one test holds for both clients."""

    def __init__(self, inner: Any, run: Callable[[Any], Any]) -> None:
        self._inner, self._run = inner, run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._method(value) if inspect.isroutine(value) else self._wrapped(value)

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self._inner)
        while True:
            try:
                yield self._wrapped(self._run(anext(iterator)))
            except StopAsyncIteration:
                return

    def _method(self, value: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            return self._wrapped(self._run(result) if inspect.isawaitable(result) else result)

        return call

    def _wrapped(self, value: Any) -> Any:
        ours = type(value).__module__.startswith("rlstm_client._async")
        return Driven(value, self._run) if ours or hasattr(value, "__anext__") else value


@pytest.fixture
def network() -> Network:
    """Between the client of a test and the server."""
    return Network()


@pytest.fixture
def waits() -> list[float]:
    """The waits of a client, which take no time."""
    return []


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: Any, url: str, network: Network, waits: list[float]) -> Iterator[Any]:
    """Each client in turn, whose waits take no time and have no chance in them."""
    options: Any = {"retries": Retries(attempts=4), "transport": network, "chance": lambda: 0.0}
    if request.param == "blocking":
        with Client(url, sleep=waits.append, **options) as client:
            yield client
        return

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with asyncio.Runner() as runner:
        client = AsyncClient(url, sleep=sleep, **options)
        yield Driven(client, lambda awaitable: runner.run(_awaited(awaitable)))
        runner.run(client.close())


async def _awaited(awaitable: Any) -> Any:
    return await awaitable

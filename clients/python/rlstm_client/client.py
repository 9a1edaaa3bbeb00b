"""The blocking client. `async_client` has the same shape, word for word."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx

from rlstm_client import _http, _wire
from rlstm_client._events import EventReader
from rlstm_client._pieces import PIECE_BYTES, AppendPlan, PieceBuffer
from rlstm_client._retries import Retries
from rlstm_client.errors import RLSTMError
from rlstm_client.models import (
    AppendResult,
    Event,
    Generation,
    Health,
    Ranking,
    ScoreResult,
    ServerInfo,
    SessionInfo,
    SessionPage,
    Unit,
)
from rlstm_client.options import (
    AppendOptions,
    CreateOptions,
    GenerateOptions,
    ResetOptions,
    ScoreOptions,
    SessionGenerateOptions,
    StreamAppendOptions,
)

T = TypeVar("T")
_DEFAULT_RETRIES = Retries()


class Client:
    """Talks to one server.

        with Client("http://127.0.0.1:8000") as client:
            print(client.score("a text", unit="bits").items[0].totals.bits_per_byte)

    url        where the server is; it may end in a path
    api_key    sent as a bearer token
    timeout    seconds, or an `httpx.Timeout`; the default waits long, since learning takes its time
    retries    when and how often a call is repeated; only what cannot be done twice ever is
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
        retries: Retries = _DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._http = httpx.Client(**_http.settings(url, api_key, timeout), transport=transport)
        self._retries = retries
        self._sleep = sleep
        self._chance = chance
        self.sessions = Sessions(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def score(self, text: str | None = None, **options: Unpack[ScoreOptions]) -> ScoreResult:
        """Return the log-probability of every token of a text, of ids, or of up to 256 items."""
        return self.send(_wire.score(text, **options))

    @overload
    def generate(
        self, prompt: str | None = None, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: str | None = None, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> "EventStream": ...
    def generate(
        self, prompt: str | None = None, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> "Generation | EventStream":
        """Continue a prompt; with ``stream=True`` return its events as they come."""
        call = _wire.generate(prompt, stream=stream, **options)
        return self.stream(call) if stream else self.send(call)

    def info(self) -> ServerInfo:
        """Return the model card, limits and defaults."""
        return self.send(_wire.info())

    def live(self) -> Health:
        """Return if the process answers."""
        return self.send(_wire.live())

    def ready(self) -> Health:
        """Return if the server takes work; one that does not is an `UnavailableError`."""
        return self.send(_wire.ready())

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self.send(_wire.metrics())

    def send(self, call: _wire.Call[T]) -> T:
        """Send a call, again where that is safe, and return its typed answer."""
        return self._repeated(call, self._exchange)

    def stream(self, call: _wire.Call[Any]) -> "EventStream":
        """Send a call and return its events; it is repeated only while no event has come."""
        return self._repeated(call, self._open)

    def _repeated(self, call: _wire.Call[Any], act: Callable[[_wire.Call[Any]], T]) -> T:
        for attempt in count(1):
            try:
                return act(call)
            except RLSTMError as error:
                wait = self._retries.wait(call, error, attempt, self._chance())
                if wait is None:
                    raise
            self._sleep(wait)
        raise AssertionError  # count() has no end

    def _exchange(self, call: _wire.Call[T]) -> T:
        try:
            response = self._http.request(**_http.arguments(call))
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call) from error
        return _wire.answer(call, _http.reply(response))

    def _open(self, call: _wire.Call[Any]) -> "EventStream":
        try:
            response = self._http.send(self._http.build_request(**_http.arguments(call)), stream=True)
            if not _http.is_event_stream(response):
                response.read()
        except httpx.HTTPError as error:
            raise _http.no_answer(error, call) from error
        if response.is_closed:
            _wire.answer(call, _http.reply(response))
            raise _http.not_a_stream(call)
        return EventStream(response, call)


class EventStream(Iterator[Event]):
    """The events of one generation. Close it, or leave its ``with`` block, to stop the generation early."""

    def __init__(self, response: httpx.Response, call: _wire.Call[Any]) -> None:
        self._response = response
        self._events = self._read(call)
        self._first: Event | None = next(self._events, None)

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
        self._response.close()

    def _read(self, call: _wire.Call[Any]) -> Iterator[Event]:
        reader = EventReader(call.request_id)
        try:
            for chunk in self._response.iter_bytes():
                yield from reader.feed(chunk)
            reader.finish()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _http.no_answer(error, call) from error
        finally:
            self._response.close()


class Sessions:
    """The sessions of one server: ``client.sessions``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, **options: Unpack[CreateOptions]) -> "Session":
        """Create a session."""
        info = self._client.send(_wire.create_session(**options))
        return Session(self._client, info.id, created=info)

    def get(self, session_id: str) -> "Session":
        """Return a handle on a session that exists, without asking the server."""
        return Session(self._client, session_id)

    def page(self, *, cursor: str | None = None, limit: int | None = None) -> SessionPage:
        """Return one page of your sessions."""
        return self._client.send(_wire.list_sessions(cursor=cursor, limit=limit))

    def list(self) -> Iterator[SessionInfo]:
        """Yield your sessions, page by page."""
        page = self.page()
        yield from page.sessions
        while page.next is not None:
            page = self.page(cursor=page.next)
            yield from page.sessions


class Session:
    """A handle on one session. It holds the id and remembers nothing else.

    ``created`` is the server's answer at create (with the first append, if a text was given), else None.
    """

    def __init__(self, client: Client, session_id: str, *, created: SessionInfo | None = None) -> None:
        _wire.session_path(session_id)
        self._client = client
        self.id = session_id
        self.created = created

    def info(self) -> SessionInfo:
        """Return version, position, totals and the like."""
        return self._client.send(_wire.get_session(self.id))

    def append(self, text: str, **options: Unpack[AppendOptions]) -> AppendResult:
        """Score a text, then learn from it. A long text travels in pieces; the answers come back as one.

        Raises:
            RLSTMError: ``error.progress`` says which part of the text is in the session already.
        """
        plan = AppendPlan(self.id, text, **options)
        for call in plan:
            try:
                plan.add(self._client.send(call))
            except RLSTMError as error:
                error.progress = plan.progress(call)
                raise
        return plan.result

    def append_stream(
        self,
        texts: Iterable[str],
        *,
        gather_bytes: int = PIECE_BYTES,
        final: bool = False,
        **options: Unpack[StreamAppendOptions],
    ) -> Iterator[AppendResult]:
        """Append texts as they come and yield an answer for each piece.

        ``gather_bytes`` texts are gathered until there is so much; 1 sends each at once.
        ``final`` flushes the word in progress at the end; the newest piece then waits for the next.
        """
        buffer = PieceBuffer(gather_bytes, hold_last=final)
        for text in texts:
            for piece in buffer.feed(text):
                yield self.append(piece, **options)
        *pieces, last = buffer.finish() or [""]
        for piece in pieces:
            yield self.append(piece, **options)
        if last:
            yield self.append(last, final=final, **options)

    def score(
        self,
        candidates: Sequence[str | Mapping[str, Any]],
        *,
        weights: Mapping[str, float] | None = None,
        unit: Unit | None = None,
    ) -> Ranking:
        """Rank up to 256 candidates against the session as it is; nothing changes."""
        return self._client.send(_wire.score_candidates(self.id, candidates, weights=weights, unit=unit))

    @overload
    def generate(
        self, *, stream: Literal[False] = False, **options: Unpack[SessionGenerateOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self, *, stream: Literal[True], **options: Unpack[SessionGenerateOptions]
    ) -> EventStream: ...
    def generate(
        self, *, stream: bool = False, **options: Unpack[SessionGenerateOptions]
    ) -> Generation | EventStream:
        """Continue the session's text; ``commit=True`` keeps what was generated."""
        call = _wire.generate_in_session(self.id, stream=stream, **options)
        return self._client.stream(call) if stream else self._client.send(call)

    def reset(self, **options: Unpack[ResetOptions]) -> SessionInfo:
        """Forget the fast weights, the recurrent state, or both."""
        return self._client.send(_wire.reset_session(self.id, **options))

    def delete(self) -> None:
        """Delete the session for good; deleting twice is no error."""
        self._client.send(_wire.delete_session(self.id))
